"""Physics of one operation: seconds of a kernel or a collective, bytes of state and activations. Pure functions.

All functions accept numpy arrays and broadcast, so that one call prices many layouts.
"""
