"""What runs slow, in plan files and in files of `--slow`."""

from typing import Literal, Self

from pydantic import Field, model_validator

from tangram_sim.file_parts import FilePart


class SlowdownDocument(FilePart):
    """One thing that runs slower than its row says."""

    where: str = Field(
        description="n3 (a node), n3.2 (its GPU 2), r12 (a rank), g0 (a group), a GPU kind, g0-g1 (the link "
        "between), network (all NICs and links), stage 2, stage 2 replica 1"
    )
    factor: float = Field(gt=0, description="times slower; below 1: faster")
    what: str = Field("compute", description="compute, memory (its bandwidth) or network (NICs, links)")
    steps: tuple[int, int] | None = Field(None, description="first and last step; null: always")
    seconds: tuple[float, float] | None = Field(None, description="window of every step; null: all of it")
    used: list[tuple[float, float]] = Field(
        [], description="background traffic: second of the run, share of the bandwidth from then on"
    )
    period_s: float = Field(0.0, ge=0, description="after which `used` starts again; 0: it is constant")

    @model_validator(mode="after")
    def _is_traffic(self) -> Self:
        times = [*(since for since, _ in self.used), self.period_s or 1.0]
        if (self.used or self.period_s) and (times[0] != 0 or times != sorted(set(times))):
            raise ValueError(f"background traffic at {times[:4]} s: give times that rise from 0: 0, 60, 120")
        for _, share in self.used:
            if not 0 <= share < 1:
                raise ValueError(f"background traffic of {share:g}: give a share of 0 or more, below 1: 0.3")
        return self


class PauseDocument(FilePart):
    """Ranks that stop now and then, e.g. for garbage collection."""

    seconds: float = Field(ge=0)
    probability: float = Field(0.0, ge=0, le=1, description="of each rank in each step, unordered")
    every_steps: int = Field(0, ge=0, description="all ranks together once in so many steps; 0: unordered")


class ResizingDocument(FilePart):
    """Columns of slow tensor-parallel ranks that are sent to others or pruned, on request."""

    method: Literal["unit-migration", "semi-migration", "zero-resizing"] = Field(
        "unit-migration",
        description="unit-migration: weights of whole units out and gradients back once a step; "
        "semi-migration: the published traffic of every linear and micro-batch; zero-resizing: pruning only",
    )
    shares: Literal["best", "published"] = Field(
        "best", description="published: a pruning rank drops 1/2, the slowest sends 28/32"
    )
    max_pruned: float = Field(0.0, ge=0, le=1, description="of a group's columns; 0: they are only sent")
    cap: float = Field(0.5, ge=0, lt=1, description="of one rank's own columns")

    @model_validator(mode="after")
    def _prunes(self) -> Self:
        if self.method == "zero-resizing" and not self.max_pruned:
            raise ValueError("zero-resizing prunes columns: give max_pruned above 0, e.g. 0.1")
        return self


class ResizedGroupDocument(FilePart):
    """A tensor-parallel group that shares its columns by speed; shares are of an even rank's columns."""

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
    """What was slow when a plan was played, and what that cost."""

    slowdowns: list[SlowdownDocument]
    pause: PauseDocument | None = None
    sequences: list[list[int]] = Field(
        [], description="tokens of the sequences in each microbatch, pipeline by pipeline; empty: all full"
    )
    resizing: ResizingDocument | None = Field(None, description="asked for; null: shares stay even")
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
