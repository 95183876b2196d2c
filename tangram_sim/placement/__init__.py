"""Placement of ranks: islands of equal GPUs, and bandwidths between any ranks."""
