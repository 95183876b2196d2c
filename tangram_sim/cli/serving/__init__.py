"""`tangram serve`: models served on unequal GPUs."""
