"""Where ranks sit: islands of equal GPUs, and roads between any ranks."""
