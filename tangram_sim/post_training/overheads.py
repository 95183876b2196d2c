"""Overheads of post-training beyond its kernels: factors and seconds fitted to measured runs."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tangram_sim.hwdb.post_training import overhead_rows


@dataclass(frozen=True, slots=True)
class Overheads:
    """Calibrated factors on phases, and added seconds; `sigma` are log standard deviations of residuals.

    Bytes are those of the policy's weights in the rollout precision; rates are those of the whole transfer as
    seen by a receiver.
    """

    rollout_scale: float = 1.0  # on iterations of the engine: log-probabilities of every token, sampling
    rollout_iteration_s: float = 0.0  # beside each iteration
    update_scale: float = 1.0
    sparse_update_scale: float = 1.0  # on top of it, where the model has experts
    forward_scale: float = 1.0
    step_s: float = 0.0  # data, advantages, logging: once a step
    switch_s: float = 0.0  # sleep and wake of colocated engines, kernels and graphs apart
    host_bytes_per_s: float = 50e9  # between a GPU and host memory, for what is moved at a switch
    gather_bytes_per_s: float = 50e9  # colocated: all weights gathered past every training rank
    broadcast_bytes_per_s: float = 20e9  # split: all weights to every rollout rank
    tensor_s: float = 0.0  # of a weight sync, for each tensor
    sync_s: float = 0.0  # of a weight sync beside the transfer: engines stop, load and go on
    sigma: float = 0.25  # of a step whose set-up is stated
    unstated_sigma: float = 0.35  # added, in squares, where lengths or layouts are assumed

    def with_values(self, values: Mapping[str, float]) -> "Overheads":
        """These overheads with some values replaced."""
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        return Overheads(**{**known, **values})


NAMES = tuple(field.name for field in fields(Overheads))


@lru_cache(maxsize=16)
def load_overheads(hwdb: Hwdb) -> Overheads:
    """Overheads from hwdb/post_training/overheads.csv; overlay rows take precedence. Raises BadInputError."""
    values: dict[str, float] = {}
    for row in overhead_rows(hwdb):
        if row["parameter"] not in NAMES:
            raise BadInputError(
                f"post_training/overheads.csv: unknown parameter {row['parameter']!r}; known are "
                f"{', '.join(NAMES)}"
            )
        values[row["parameter"]] = row.number("value")
    return Overheads().with_values(values)
