"""Which runs belong together: those of one configuration, and those of one setting that differ by plan."""

import hashlib
from dataclasses import replace

from tangram_sim.validation.published.reading import Run

FOLDS = 5


def configuration(run: Run) -> int:
    """A number that equal configurations share, whatever the row, the source and the model are called."""
    facts = (replace(run.model, name=""), run.cluster, run.job, run.layout, run.recompute, run.full_layers)
    return _number(facts)


def setting(run: Run) -> int:
    """A number that runs of one sweep share: a source's job on one cluster, whatever the layout.

    The stack is part of the job; schedule and recomputation are the plan's.
    """
    job = replace(run.job, schedule="")
    return _number((run.source_id, run.table, replace(run.model, name=""), run.cluster, job))


def _number(facts: object) -> int:
    return int(hashlib.sha256(repr(facts).encode()).hexdigest()[:12], 16)
