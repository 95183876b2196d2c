"""Availability of GPU kinds over time, from a file, as periods in which replicas are up."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

from tangram_sim.datafiles import read_csv
from tangram_sim.errors import BadInputError
from tangram_sim.serving.fleet import FleetReplica, Presence

Steps = list[tuple[float, int]]  # (from this time on, so many GPUs), ascending


def read_availability(path: Path, gpus: Sequence[str]) -> dict[str, Steps]:
    """(time, GPUs available from then on) by GPU kind, from a CSV with the columns `time_s, gpu, count`."""
    rows = read_csv(path)
    wanted = {"time_s", "gpu", "count"}
    if not rows or not wanted <= rows[0].keys():
        raise BadInputError(f"{path}: wanted are rows with the columns time_s, gpu, count")
    found: dict[str, Steps] = {}
    for line, row in enumerate(rows, start=2):
        try:
            time_s, count = float(row["time_s"]), int(row["count"])
        except ValueError:
            raise BadInputError(f"{path}, line {line}: time_s and count must be numbers") from None
        if time_s < 0 or not time_s < inf or count < 0:
            raise BadInputError(f"{path}, line {line}: time_s and count must be 0 or more")
        steps = found.setdefault(row["gpu"], [])
        if steps and time_s < steps[-1][0]:
            raise BadInputError(f"{path}, line {line}: times of {row['gpu']} must ascend")
        steps.append((time_s, count))
    unknown = sorted(found.keys() - set(gpus))
    if len(unknown) == len(found):
        raise BadInputError(
            f"{path}: no GPU of the fleet is in it; the fleet has {', '.join(sorted(set(gpus)))}"
        )
    return found


def under_availability(
    fleet: Sequence[FleetReplica], gpus: Mapping[str, Mapping[str, int]], available: Mapping[str, Steps]
) -> list[FleetReplica]:
    """The fleet with replicas up only while enough GPUs are available; replicas listed first have priority.

    `gpus` are the GPUs of each replica by kind. Kinds that are not in `available` are unlimited; others have
    no GPUs before their first row.
    """
    taken: dict[str, int] = {}
    placed = []
    for fleet_replica in fleet:
        scarce = [kind for kind in gpus[fleet_replica.name] if kind in available]
        if not scarce:
            placed.append(fleet_replica)
            continue
        for kind in scarce:
            taken[kind] = taken.get(kind, 0) + gpus[fleet_replica.name][kind]
        boot_s = fleet_replica.presences[0].boot_s if fleet_replica.presences else 0.0
        presences: list[Presence] = []
        since: float | None = None
        for time_s in [*sorted({at for kind in scarce for at, _ in available[kind]}), inf]:
            there = time_s < inf and all(_there(available[kind], time_s) >= taken[kind] for kind in scarce)
            if there and since is None:
                since = time_s
            elif not there and since is not None:
                presences.append(Presence(since, time_s, boot_s))
                since = None
        placed.append(replace(fleet_replica, presences=tuple(presences)))
    return placed


def _there(steps: Steps, time_s: float) -> int:
    """GPUs available at `time_s`; 0 before the first row."""
    return next((count for at, count in reversed(steps) if at <= time_s), 0)
