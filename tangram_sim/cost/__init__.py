"""Costs of single operations: seconds of a kernel, seconds of a collective. Pure functions.

All functions accept numpy arrays and broadcast, so that one call prices many layouts.
"""
