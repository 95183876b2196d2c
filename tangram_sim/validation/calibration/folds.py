"""Which runs are left out together: those of one configuration, whatever they are called."""

import hashlib
from dataclasses import replace

from tangram_sim.validation.published.reading import Run

FOLDS = 5


def configuration(run: Run) -> int:
    """A number that equal configurations share, whatever the row, the source and the model are called."""
    facts = (replace(run.model, name=""), run.cluster, run.job, run.layout, run.recompute, run.full_layers)
    return int(hashlib.sha256(repr(facts).encode()).hexdigest()[:12], 16)
