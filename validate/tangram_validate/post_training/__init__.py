"""Measured post-training runs: read, predicted, scored; overheads fitted to them."""
