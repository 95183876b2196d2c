"""Speeds and sizes of tangram-sim beside their targets; nothing in the package or the tests imports this."""
