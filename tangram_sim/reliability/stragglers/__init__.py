"""Slow ranks: the time that they cost in a measured run, and remedies."""
