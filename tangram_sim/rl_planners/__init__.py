"""Which GPUs generate and which train: search, bound and baselines for post-training on unequal fleets."""
