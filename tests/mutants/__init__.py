"""Mutants: small faults put into the code of a room, and whether the tests of that room notice."""
