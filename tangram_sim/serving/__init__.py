"""Serving: time of one engine iteration, memory for the KV cache, and simulation of requests over time."""
