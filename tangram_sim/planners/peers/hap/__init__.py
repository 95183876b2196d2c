"""HAP: one program that all GPUs run on uneven shares, found best-first; the shares by linear programming."""
