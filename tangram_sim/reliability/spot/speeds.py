"""Speeds of layouts on nodes: the interface, and tables that a user provides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

from tangram_sim.datafiles import read_csv
from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.reliability.spot.rerouting import busiest, rerouted_step_s

# Whose column of a table by node count a policy reads: the system that it stands for.
SYSTEMS = {"restart": "varuna", "templates": "oobleck", "redundancy": "bamboo"}
FORWARD, BACKWARD = 1.0, 2.0  # passes of a table's stages, next to each other
REDUNDANT_STEP = (2 * FORWARD + BACKWARD) / (FORWARD + BACKWARD)  # also runs its neighbour's forward pass


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run on some nodes. `nodes` by kind; speeds are those of uninterrupted steps."""

    label: str
    samples_per_s: float
    samples_per_step: float
    nodes: tuple[tuple[str, int], ...]
    pipelines: int = 1
    stages: int = 1
    copies: int = 0  # nodes that hold any share of its state, at least; 0: as many as pipelines

    @property
    def survives_one(self) -> bool:
        """Whether peers still hold all state after the loss of any one node."""
        return (self.copies or self.pipelines) >= 2

    @property
    def size(self) -> int:
        """Number of nodes that the option uses."""
        return sum(count for _, count in self.nodes)

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.samples_per_step / self.samples_per_s

    def fits(self, fleet: Mapping[str, int]) -> bool:
        """Whether the fleet (nodes by kind) has the option's nodes."""
        return all(fleet.get(kind, 0) >= count for kind, count in self.nodes)


Fleet = tuple[tuple[str, int], ...]  # nodes by kind, sorted, none of zero


class Speeds(Protocol):
    """The speeds that a replay asks for. None: nothing runs on that fleet."""

    def best(self, fleet: Fleet) -> Option | None:
        """The fastest way to run on the fleet."""

    def all_on(self, fleet: Fleet) -> Sequence[Option]:
        """All options to consider, for policies that look ahead."""

    def templates(self, fleet: Fleet) -> Option | None:
        """The option with pipelines of unequal size over all nodes of the fleet."""

    def redundant(self, fleet: Fleet) -> Option | None:
        """The fastest option in which each stage's neighbour also holds it and runs its forward passes."""

    def resized(self, option: Option, fleet: Fleet) -> Option | None:
        """`option` with as many of its replicas, each unchanged, as the fleet can hold."""

    def rerouted(self, option: Option, dead: Sequence[int]) -> float:
        """Samples/s of `option` when stage s has lost dead[s] workers and peers take over; 0: cannot run."""

    def short_of_nodes(self, fleet: Fleet) -> Option | None:
        """Upper bound, no plan: faster than any larger layout that lacks nodes and whose peers take over."""


def _of(fleet: Fleet) -> int:
    return sum(count for _, count in fleet)


def _on(fleet: Fleet, size: int) -> Fleet:
    """The fleet reduced to `size` nodes, all of its only kind."""
    return ((fleet[0][0], size),)


@dataclass(frozen=True)
class LayoutTable:
    """Measured or computed samples/s by (pipelines, stages), with one node per stage and all nodes equal."""

    rates: Mapping[tuple[int, int], float]
    samples_per_step: float
    microbatch: float = 1.0
    redundant_step: float = REDUNDANT_STEP
    sequences_per_pipeline: float = 0.0  # of a step, however many pipelines there are; 0: the batch is kept

    @cached_property
    def _ranked(self) -> list[tuple[float, tuple[int, int]]]:
        return sorted(((rate, layout) for layout, rate in self.rates.items() if rate > 0), reverse=True)

    def option(self, fleet: Fleet, layout: tuple[int, int], rate: float) -> Option:
        """The option for one layout and its samples/s, on nodes of the fleet."""
        pipelines, stages = layout
        return Option(
            f"{pipelines} x {stages}",
            rate,
            self.sequences_per_pipeline * pipelines or self.samples_per_step,
            _on(fleet, pipelines * stages),
            pipelines,
            stages,
        )

    def with_batch_per_pipeline(self, sequences: float) -> "LayoutTable":
        """The table with `sequences` a step for every pipeline, in place of its share of one global batch.

        A step of m microbatches through P stages takes m + P - 1 slots; the seconds of a slot are kept.
        """
        count = max(1, round(sequences / self.microbatch))
        rates = {}
        for (pipelines, stages), rate in self.rates.items():
            was = self.samples_per_step / pipelines / self.microbatch
            slot_s = self.samples_per_step / rate / (was + stages - 1) if rate else 0.0
            step_s = slot_s * (count + stages - 1)
            rates[pipelines, stages] = pipelines * count * self.microbatch / step_s if rate else 0.0
        return replace(self, rates=rates, sequences_per_pipeline=count * self.microbatch)

    def best(self, fleet: Fleet) -> Option | None:
        """The fastest layout that fits; among equally fast ones the one with the fewest pipelines."""
        count = _of(fleet)
        fitting = [(rate, layout) for rate, layout in self._ranked if layout[0] * layout[1] <= count]
        if not fitting:
            return None
        fastest = fitting[0][0]
        layout = min((item for rate, item in fitting if rate == fastest), default=fitting[0][1])
        return self.option(fleet, layout, fastest)

    def all_on(self, fleet: Fleet) -> Sequence[Option]:
        """Every layout that fits, fastest first."""
        count = _of(fleet)
        return [self.option(fleet, item, rate) for rate, item in self._ranked if item[0] * item[1] <= count]

    def templates(self, fleet: Fleet) -> Option | None:
        """The fastest layout: a table of equal pipelines does not know unequal ones."""
        return self.best(fleet)

    def redundant(self, fleet: Fleet) -> Option | None:
        """Fastest layout of at least twice the fewest stages (two per node), slowed by `redundant_step`."""
        count, least = _of(fleet), min(stages for _, stages in self.rates)
        fitting = [
            (rate, layout)
            for rate, layout in self._ranked
            if layout[0] * layout[1] <= count and layout[1] >= 2 * least
        ]
        if not fitting:
            return None
        rate, layout = fitting[0]
        return self.option(fleet, layout, rate / self.redundant_step)

    def resized(self, option: Option, fleet: Fleet) -> Option | None:
        """The layout of the same depth with the most pipelines that the nodes allow and the table has."""
        for pipelines in range(_of(fleet) // option.stages, 0, -1):
            rate = self.rates.get((pipelines, option.stages), 0.0)
            if rate > 0:
                return self.option(fleet, (pipelines, option.stages), rate)
        return None

    def rerouted(self, option: Option, dead: Sequence[int]) -> float:
        """Samples/s scaled by simulated schedules with and without dead workers; backward is 2 x forward."""
        count = max(1, round(option.samples_per_step / self.microbatch / option.pipelines))
        passes = [FORWARD] * option.stages, [BACKWARD] * option.stages
        whole = rerouted_step_s(*passes, option.pipelines, count, ())
        now = rerouted_step_s(*passes, option.pipelines, count, dead)
        return option.samples_per_s * whole / now if now else 0.0

    def short_of_nodes(self, fleet: Fleet) -> Option | None:
        """A bound: no step is shorter than the whole layout's, or the work of its busiest live worker."""
        nodes, found = _of(fleet), list[Option]()
        for rate, (pipelines, stages) in self._ranked:
            gone = -(-(pipelines * stages - nodes) // stages)  # of some stage, at least
            if 0 < gone < pipelines:
                option = self.option(fleet, (pipelines, stages), rate)
                count = max(1, round(option.samples_per_step / self.microbatch / pipelines))
                slots, work = count + stages - 1, max(busiest(pipelines, count, [gone]))
                found.append(
                    replace(option, samples_per_s=rate * slots / max(slots, work), nodes=_on(fleet, nodes))
                )
        return max(found, key=lambda option: option.samples_per_s, default=None)


@dataclass(frozen=True)
class CountTable:
    """Measured samples/s by number of nodes, for one or several systems, each standing for a policy."""

    rates: Mapping[str, Mapping[int, float]]  # by system; "" holds for all
    samples_per_step: float

    def _rate(self, system: str, count: int) -> tuple[int, float]:
        """(nodes used, samples/s) of the row with the most nodes up to `count`; (0, 0) without one."""
        rows = self.rates.get(system) or self.rates.get("") or {}
        used = max((nodes for nodes in rows if nodes <= count), default=0)
        return (used, rows[used]) if used and rows[used] > 0 else (0, 0.0)

    def _option(self, fleet: Fleet, system: str) -> Option | None:
        used, rate = self._rate(system, _of(fleet))
        return Option(f"{used} nodes", rate, self.samples_per_step, _on(fleet, used)) if used else None

    def best(self, fleet: Fleet) -> Option | None:
        """The option of the system that restarts with the fastest layout."""
        return self._option(fleet, SYSTEMS["restart"])

    def all_on(self, fleet: Fleet) -> Sequence[Option]:
        """Options of the system that restarts, on all nodes and on fewer, most nodes first."""
        found = self.best(fleet)
        options = [found] if found else []
        for count in range(_of(fleet) - 1, 0, -1):
            option = self.best(_on(fleet, count))
            if option is not None and option not in options:
                options.append(option)
        return options

    def templates(self, fleet: Fleet) -> Option | None:
        """The option of the system that recombines pipelines."""
        return self._option(fleet, SYSTEMS["templates"])

    def redundant(self, fleet: Fleet) -> Option | None:
        """The option of the system with redundant computation."""
        return self._option(fleet, SYSTEMS["redundancy"])

    def resized(self, option: Option, fleet: Fleet) -> Option | None:
        """None: the table does not say what a replica is."""
        del option, fleet
        return None

    def rerouted(self, option: Option, dead: Sequence[int]) -> float:
        """0: the table does not say what a stage is."""
        del option, dead
        return 0.0

    def short_of_nodes(self, fleet: Fleet) -> Option | None:
        """None: the speed of a layout that lacks nodes is not known."""
        del fleet
        return None


def read_speeds(path: Path, model: str, samples_per_step: float = 0.0) -> LayoutTable | CountTable:
    """A table of speeds from a CSV with `[model,][global_batch,][microbatch,]pipelines,stages,samples_per_s`,
    or `[system,][model,]nodes,samples_per_s`.

    Rows of other models are left out. Raises UnknownNameError for a model without rows, BadInputError for
    malformed rows.
    """
    rows = read_csv(path)
    header = set(rows[0]) if rows else set()
    by_layout = {"pipelines", "stages", "samples_per_s"} <= header
    if not by_layout and not {"nodes", "samples_per_s"} <= header:
        raise BadInputError(
            f"{path}: a table of speeds has pipelines,stages,samples_per_s, or nodes,samples_per_s"
        )
    names = list(dict.fromkeys(row.get("model", "") for row in rows))
    if "model" in header:
        if model not in names:
            raise unknown_name("model in the table of speeds", model, names)
        rows = [row for row in rows if row["model"] == model]
    if by_layout:
        rates = {
            (_whole(path, row, "pipelines"), _whole(path, row, "stages")): _amount(path, row, "samples_per_s")
            for row in rows
        }
        batch = samples_per_step or _size(path, rows[0], "global_batch")
        return LayoutTable(rates, batch, _size(path, rows[0], "microbatch"))
    systems: dict[str, dict[int, float]] = {}
    for row in rows:
        rate = _amount(path, row, "samples_per_s")
        systems.setdefault(row.get("system", ""), {})[_whole(path, row, "nodes")] = rate
    return CountTable(systems, samples_per_step or 1.0)


_LEAST, _MOST = 1e-9, 1e12  # samples, and samples/s: a step then takes a time that can be counted


def _amount(path: Path, row: Mapping[str, str], column: str, default: float | None = None) -> float:
    text = row.get(column, "")
    if not text and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value != 0 and not _LEAST <= value <= _MOST:
        raise BadInputError(f"{path}: {column} {text!r}: 0, or {_LEAST:g} to {_MOST:g}, is wanted")
    return value


def _size(path: Path, row: Mapping[str, str], column: str) -> float:
    """Sequences of a batch in a row, 1 where the column is missing. Raises BadInputError for 0."""
    value = _amount(path, row, column, 1.0)
    if not value:
        raise BadInputError(f"{path}: {column} {row[column]!r}: more than 0 is wanted")
    return value


def _whole(path: Path, row: Mapping[str, str], column: str) -> int:
    value = _amount(path, row, column)
    if value % 1 or value < 1:
        raise BadInputError(f"{path}: {column} {row[column]!r}: a whole number, 1 or more, is wanted")
    return int(value)
