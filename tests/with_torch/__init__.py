"""Checks against torch's own counters; collected where torch is installed (extra `validate`)."""
