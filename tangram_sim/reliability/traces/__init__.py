"""Measured training steps, operation by operation: the noun and its readers."""
