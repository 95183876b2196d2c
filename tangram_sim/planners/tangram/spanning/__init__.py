"""Stages on several islands at once."""
