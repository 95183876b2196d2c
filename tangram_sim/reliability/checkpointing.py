"""Checkpoint tiers and recovery times that users state: what blocks, what survives, what a restart takes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from pydantic import Field

from tangram_sim.datafiles import read_yaml_mapping
from tangram_sim.errors import BadInputError
from tangram_sim.file_parts import FilePart
from tangram_sim.reliability.failures import REACH, Takes

Survives = Literal["process", "node", "leaf", "all"]
_MOST_S = 1e12  # 30,000 years: nothing that a run waits for takes longer, and sums stay far from overflow


@dataclass(frozen=True, slots=True)
class CheckpointTier:
    """One place where checkpoints are stored; seconds. `period_s` is nan where the search chooses it."""

    name: str
    block_s: float  # training stands still for it
    save_s: float = 0.0  # from the snapshot until it can be restored from
    load_s: float = 0.0
    survives: Takes = "all"
    period_s: float = math.nan

    def survived(self, takes: Takes) -> bool:
        """Whether this tier's checkpoint is still there after a failure that takes `takes`."""
        return REACH.index(self.survives) >= REACH.index(takes)


@dataclass(frozen=True, slots=True)
class RecoveryTimes:
    """Seconds that a restart takes, without loading state."""

    detect_s: float = 0.0
    allocate_s: float = 0.0  # waiting for a node; 0 with a spare
    init_s: float = 0.0  # processes, rendezvous, communicators
    warmup_s: float = 0.0
    notice_s: float = 0.0  # that losses of nodes are announced ahead: of use to replays of spot traces only


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """Checkpoint tiers and recovery times of one run."""

    tiers: tuple[CheckpointTier, ...]
    recovery: RecoveryTimes


class _Tier(FilePart):
    name: str = ""
    every: float | str = "auto"
    block_s: float | None = Field(None, ge=0)
    block_bytes_per_s: float | None = Field(None, gt=0)
    save_s: float = Field(0.0, ge=0)
    load_bytes_per_s: float | None = Field(None, gt=0)
    load_s: float | None = Field(None, ge=0)
    survives: Survives = "all"


class _Init(FilePart):
    base: float = Field(0.0, ge=0)
    per_node: float = Field(0.0, ge=0)


class _Recovery(FilePart):
    detect_s: float = Field(0.0, ge=0)
    allocate_s: float = Field(0.0, ge=0)
    init_s: float | _Init = 0.0
    warmup_steps: float = Field(0.0, ge=0)
    notice_s: float = Field(0.0, ge=0)


class _CheckpointFile(FilePart):
    checkpoint: list[_Tier] = Field(min_length=1, max_length=16)  # memory, a disk, a share, a store: few
    recovery: _Recovery = _Recovery()


_KEYS = "`checkpoint`, a list of tiers like {block_s: 30, load_s: 60}, and `recovery`, like {detect_s: 60}"


def load_checkpointing(
    path: Path, nodes: int, saved_bytes: float, loaded_bytes: float, step_s: float
) -> Checkpointing:
    """Checkpoint tiers and recovery times from a YAML file, with rates converted to seconds.

    `saved_bytes` and `loaded_bytes` are the most bytes that one node of the plan writes and reads. Rates in
    the file are per node. Raises BadInputError for malformed files.
    """
    found = _CheckpointFile.read(read_yaml_mapping(path, _KEYS), str(path))
    tiers = tuple(
        _tier(tier, index, path, saved_bytes, loaded_bytes, step_s)
        for index, tier in enumerate(found.checkpoint)
    )
    names = [tier.name for tier in tiers]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise BadInputError(
                f"{path}: checkpoint.{index}: a second tier is called {name!r}; give another name"
            )
    given = found.recovery
    init = (
        given.init_s if isinstance(given.init_s, float) else given.init_s.base + given.init_s.per_node * nodes
    )
    if init < 0:
        raise BadInputError(f"{path}: recovery.init_s: {init:g} given; 0 or more is wanted")
    warmup_s = given.warmup_steps * step_s
    recovery = RecoveryTimes(given.detect_s, given.allocate_s, init, warmup_s, given.notice_s)
    stated: Sequence[tuple[str, CheckpointTier | RecoveryTimes]] = [
        *((f"checkpoint.{index}", tier) for index, tier in enumerate(tiers)),
        ("recovery", recovery),
    ]
    for place, item in stated:
        for each in fields(item):
            seconds = getattr(item, each.name)
            if each.name.endswith("_s") and seconds > _MOST_S:
                raise BadInputError(
                    f"{path}: {place}: {each.name} comes to {seconds:g} s; at most {_MOST_S:g} s can be meant"
                )
    return Checkpointing(tiers, recovery)


def _tier(
    tier: _Tier, index: int, path: Path, saved_bytes: float, loaded_bytes: float, step_s: float
) -> CheckpointTier:
    where = f"{path}: checkpoint.{index}"
    if (tier.block_s is None) == (tier.block_bytes_per_s is None):
        raise BadInputError(f"{where}: give one of block_s and block_bytes_per_s")
    if tier.load_s is not None and tier.load_bytes_per_s is not None:
        raise BadInputError(f"{where}: give one of load_s and load_bytes_per_s")
    block = tier.block_s if tier.block_s is not None else saved_bytes / (tier.block_bytes_per_s or math.inf)
    load = tier.load_s if tier.load_s is not None else loaded_bytes / (tier.load_bytes_per_s or math.inf)
    name = tier.name or f"tier {index}"
    return CheckpointTier(name, block, tier.save_s, load, tier.survives, _period_s(tier.every, step_s, where))


def _period_s(every: float | str, step_s: float, where: str) -> float:
    """Seconds between checkpoints, from a number of seconds or `50 steps`; nan for `auto`."""
    if every == "auto":
        return math.nan
    text = str(every).strip()
    number, _, unit = text.partition(" ")
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if not (math.isfinite(value) and value > 0) or unit not in ("", "s", "steps"):
        raise BadInputError(f"{where}.every: {every!r} given; auto, seconds, or `50 steps` is wanted")
    return value * step_s if unit == "steps" else value
