"""Published figures on slow ranks, failures and spot capacity, computed again: `python -m
benchmarks.elastic`.
"""
