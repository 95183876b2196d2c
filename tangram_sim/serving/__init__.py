"""Serving: what one iteration of an engine costs, what its memory holds, and how requests fare in time."""
