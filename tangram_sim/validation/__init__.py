"""Predictions held against what was measured, and the rows calibrated from it."""
