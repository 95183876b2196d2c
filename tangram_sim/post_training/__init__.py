"""Reinforcement-learning post-training: generate, score, update, synchronise weights, again."""
