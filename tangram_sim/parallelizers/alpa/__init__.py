"""Alpa's two programs: operators of a block sharded by an ILP, stages cut by dynamic programming."""
