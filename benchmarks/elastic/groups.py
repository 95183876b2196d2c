"""Which module computes which group of figures.

A module has `compute(figure, data) -> Answer`. It reads the row's `setting`, `metric` and `inputs`, never
its id or value, and raises `RefusedError` for what it cannot compute.
"""

from importlib import import_module
from typing import Protocol, cast

from benchmarks.elastic.figures import Answer, Data, Figure, RefusedError

MODULES = {
    "what-if": "benchmarks.elastic.what_if",
    "stage imbalance": "benchmarks.elastic.stage_imbalance",
    "injected slow worker": "benchmarks.elastic.slow_worker",
    "fail-slow mitigation": "benchmarks.elastic.fail_slow",
    "checkpoint period": "benchmarks.elastic.checkpoint_period",
    "reliability": "benchmarks.elastic.reliability",
    "checkpoint every step": "benchmarks.elastic.every_step",
    "batch split": "benchmarks.elastic.batch_split",
    "spot replay, fastest layout": "benchmarks.elastic.spot_layouts",
    "failure frequency": "benchmarks.elastic.node_losses",
    "spot replay": "benchmarks.elastic.node_losses",
    "state migration": "benchmarks.elastic.state_moves",
    "headline": "benchmarks.elastic.headlines",
}


class Group(Protocol):
    """What a module of a group offers."""

    def compute(self, figure: Figure, data: Data) -> Answer:
        """The figure, computed; raises `RefusedError`."""


def compute(figure: Figure, data: Data) -> Answer:
    """The figure, computed by its group's module; raises `RefusedError`."""
    if figure.group not in MODULES:
        raise RefusedError(f"group {figure.group!r} is not computed; known: {', '.join(MODULES)}")
    return cast(Group, import_module(MODULES[figure.group])).compute(figure, data)
