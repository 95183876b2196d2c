"""HAP: one SPMD program on all GPUs with uneven shares, by best-first search and linear programming."""
