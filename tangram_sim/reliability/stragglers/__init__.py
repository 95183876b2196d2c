"""Slow ranks: what they cost in a measured run, and what to do about them."""
