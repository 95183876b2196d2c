"""Calibration of kernel efficiencies: from measured tables and layer profiles to rows of hwdb/efficiency."""
