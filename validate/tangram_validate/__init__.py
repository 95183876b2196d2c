"""Plans executed for real: torch.distributed runs held against predictions. Needs torch.

Imports `tangram_sim`; the reverse never happens. Importing this package imports no torch: verbs say what to
install where it is missing.
"""
