"""Post-training by reinforcement learning: repeatedly generate, score, update and synchronise weights."""
