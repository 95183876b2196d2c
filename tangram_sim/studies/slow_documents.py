"""Documents of slowdowns, in plan files and in files for `--slow`."""

from typing import Annotated

from pydantic import AfterValidator, Field

from tangram_sim.file_parts import FilePart
from tangram_sim.health import Pause, Resizing, Slowdown


def _is_traffic(slowdown: Slowdown) -> Slowdown:
    """The slowdown. Raises ValueError for background traffic that cannot be."""
    times = [*(since for since, _ in slowdown.used), slowdown.period_s or 1.0]
    if (slowdown.used or slowdown.period_s) and (times[0] != 0 or times != sorted(set(times))):
        raise ValueError(f"background traffic at {times[:4]} s: give times that rise from 0: 0, 60, 120")
    for _, share in slowdown.used:
        if not 0 <= share < 1:
            raise ValueError(f"background traffic of {share:g}: give a share of 0 or more, below 1: 0.3")
    return slowdown


def _prunes(resizing: Resizing) -> Resizing:
    """The request. Raises ValueError for one that prunes and may not."""
    if resizing.method == "zero-resizing" and not resizing.max_pruned:
        raise ValueError("zero-resizing prunes columns: give max_pruned above 0, e.g. 0.1")
    return resizing


StatedSlowdown = Annotated[Slowdown, AfterValidator(_is_traffic)]
StatedResizing = Annotated[Resizing, AfterValidator(_prunes)]


class SlowEntry(FilePart):
    """One thing that runs slower than its row says, of a file."""

    slow: StatedSlowdown


class SlowFile(FilePart):
    """What a file of `--slow` says beside its entries."""

    pause: Pause | None = None
    resizing: StatedResizing | None = None


class ResizedGroupDocument(FilePart):
    """A tensor-parallel group that shares its columns by speed; shares are relative to an even share."""

    pipeline: int
    stage: int
    ranks: list[int]
    slowness: list[float] = Field(description="times slower than priced, by rank")
    pace_before: float = Field(description="how much slower its layers were with even shares")
    pace: float = Field(description="how much slower they are now")
    pruned: list[float] = Field(description="by rank: columns that nobody computes")
    sent: list[float]
    received: list[float]
    pruned_share: float = Field(description="of the group's columns: the risk; accuracy is not simulated")
    sent_bytes: float = Field(
        description="a step: what the method sends over the group, gradients that come back included"
    )


class SlowPhase(FilePart):
    """A run of steps in which the same things are slow."""

    first_step: int
    last_step: int | None = Field(description="null: to the end")
    step_s: float


class SlowDocument(FilePart):
    """Slowdowns in a simulated plan, and what they cost."""

    slowdowns: list[StatedSlowdown]
    pause: Pause | None = Field(None, description="ranks that stop now and then")
    sequences: list[list[int]] = Field(
        [], description="tokens of the sequences in each microbatch, pipeline by pipeline; empty: all full"
    )
    resizing: StatedResizing | None = Field(None, description="asked for; null: shares stay even")
    resized: list[ResizedGroupDocument] = Field([], description="groups that gain by it")
    pruned_share: float = Field(
        0.0, ge=0, le=1, description="the most of any group; accuracy is not simulated"
    )
    healthy_step_s: float = Field(0.0, ge=0, description="the same plan with nothing slow")
    slowdown: float = Field(0.0, ge=0, description="step_s and pause_step_s over healthy_step_s")
    lossless_bound_step_s: float = Field(
        0.0,
        ge=0,
        description="healthy step x N / sum(1/x), GPUs by their peaks: the lost speed spread evenly; no "
        "lossless plan does better where the healthy step was the best one",
    )
    pause_step_s: float = Field(0.0, ge=0, description="what pauses add to the mean step, beside step_s")
    unchanged_step_s: float = Field(
        0.0, ge=0, description="of `plan --slow`: the plan for the healthy cluster, played slow"
    )
    phases: list[SlowPhase] = Field([], description="of background traffic: of its first day or trace")
    traffic_step_s: float = Field(
        0.0,
        ge=0,
        description="mean of `phases` where background traffic changes; `step_s` is that of its mean share",
    )
