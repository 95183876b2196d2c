"""Step traces from torch.profiler: one Chrome trace per rank, passes named by record_function annotations.

The annotations of torch.distributed.pipelining (`Forward 3` and `Backward 3` of single-stage schedules,
`PP:0F3` with stage, direction and microbatch of the others), `Optimizer.step#...`, and `ProfilerStep#N`,
which separates steps, are read. All else is ignored, so in the replay passes depend on passes alone.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tangram_sim.errors import BadInputError, shown
from tangram_sim.opgraph import FloatArray
from tangram_sim.reliability.traces.kinds import CODES
from tangram_sim.reliability.traces.trace import StepTrace, TraceRows, assemble

_PASS = re.compile(r"(Forward|Backward) (\d{1,9})|(?:PP:)?(\d{1,9})([FB])(\d{1,9})")
_STEP = re.compile(r"ProfilerStep#(\d{1,9})")
_OPTIMIZER = re.compile(r"Optimizer\.step#.*")
_MOST_RANKS = 1_000_000
_ANNOTATIONS = ("user_annotation", "cpu_op")

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RankProfile:
    """One rank's profile: its rank, the number of ranks, its events."""

    name: str
    rank: int
    ranks: int
    events: list[Event]


def profile_of(document: Mapping[str, Any], name: str) -> RankProfile:
    """The profile in a torch.profiler file; raises `BadInputError` where the file does not state its rank."""
    about = document.get("distributedInfo")
    if not isinstance(about, dict) or "rank" not in about:
        raise BadInputError(
            f"{name}: does not say which rank it is of (no distributedInfo): export it from "
            f"torch.profiler after "
            "torch.distributed.init_process_group, one file per rank."
        )
    rank, ranks = about["rank"], about.get("world_size", 1)
    if type(rank) is not int or type(ranks) is not int or not 0 <= rank < ranks <= _MOST_RANKS:
        raise BadInputError(
            f"{name}: rank {shown(rank)} of {shown(ranks)} (distributedInfo); whole numbers are wanted, the "
            f"rank below the world size, which is {_MOST_RANKS:,} at most"
        )
    return RankProfile(name, rank, ranks, list(document["traceEvents"]))


def read_profiles(profiles: list[RankProfile], stages: int, name: str) -> StepTrace:
    """The trace of all ranks' profiles, with one rank per pipeline stage and replica.

    Ranks are ordered stage by stage, replicas innermost (as Megatron and torch number them). The ranks'
    clocks are assumed to agree; each step starts at its first pass. Raises `BadInputError` for missing ranks.
    """
    world = max(profile.ranks for profile in profiles)
    missing = sorted(set(range(world)) - {profile.rank for profile in profiles})
    if missing or len(profiles) != world:
        raise BadInputError(
            f"{name}: {len(profiles)} files for {world} ranks; "
            + (f"missing: rank {', '.join(map(str, missing[:6]))}" if missing else "a rank is there twice")
        )
    if world % stages:
        raise BadInputError(
            f"{name}: {world} ranks are no multiple of {stages} stages; give `pp=` N that divides them."
        )
    replicas = world // stages
    found = [row for profile in profiles for row in _rows(profile, replicas)]
    if not found:
        raise BadInputError(
            f"{name}: no pass in it: annotate them with record_function('Forward 0'), ('Backward 0'), as "
            "torch.distributed.pipelining does, and profile with schedule and step()."
        )
    step, dp, stage, kind, seq = (
        np.array(column, dtype=np.int64) for column in list(zip(*found, strict=True))[:5]
    )
    start: FloatArray = np.array([row[5] for row in found]) * 1e-6
    took: FloatArray = np.array([row[6] for row in found]) * 1e-6
    for each in np.unique(step):
        start[step == each] -= start[step == each].min()
    return assemble(TraceRows(step, dp, stage, kind, seq, start_s=start, duration_s=took), name)


_Row = tuple[int, int, int, int, int, float, float]


def _rows(profile: RankProfile, replicas: int) -> list[_Row]:
    stage, dp = divmod(profile.rank, replicas)
    events = [
        event for event in profile.events if event.get("ph") == "X" and event.get("cat") in _ANNOTATIONS
    ]
    steps = sorted(
        (float(event["ts"]), float(event["ts"]) + float(event["dur"]), int(match[1]))
        for event in events
        if (match := _STEP.fullmatch(str(event.get("name"))))
    )
    rows: list[_Row] = []
    for event in events:
        name, start, took = str(event.get("name")), float(event["ts"]), float(event["dur"])
        match, optimizer = _PASS.fullmatch(name), _OPTIMIZER.fullmatch(name)
        if match is None and optimizer is None:
            continue
        step = next(
            (number for begin, end, number in steps if begin <= start < end), 0 if not steps else None
        )
        if step is None:
            continue
        if match is None:
            rows.append((step, dp, stage, CODES["OP"], 0, start, took))
            continue
        if match[3] is not None and int(match[3]) != stage:
            raise BadInputError(
                f"{profile.name}: rank {profile.rank} runs stage {match[3]}, not {stage}: several stages "
                f"per rank, or "
                "another `pp=`"
            )
        code = (match[1] or match[4])[0]
        rows.append((step, dp, stage, CODES[code], int(match[2] or match[5]), start, took))
    return rows
