"""Costs of transitions: the interface, and tables of measured seconds that a user provides."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path

from tangram_sim.datafiles import read_csv
from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.reliability.spot.speeds import Option

BYTES_PER_PARAMETER = 12.0  # fp32 weights and two moments, as the sources of the shipped tables move them
# Parameters of layers before the last that are unlike the others: two fully connected ones of VGG-19
# (Simonyan and Zisserman, arXiv:1409.1556), 7 x 7 x 512 x 4,096 and 4,096 x 4,096 with biases.
UNLIKE_LAYERS = {"vgg19": (102_764_544.0, 16_781_312.0)}


@dataclass(frozen=True, slots=True)
class Stall:
    """Seconds without training, and the account that they go to."""

    account: str
    seconds: float


Stalls = tuple[Stall, ...]


def seconds_of(stalls: Stalls) -> float:
    """Seconds of all stalls together."""
    return sum(stall.seconds for stall in stalls)


@dataclass(frozen=True, kw_only=True)
class Transitions(ABC):
    """What a replay asks about changing over; `old` is None at the start and after waiting.

    `block_s`: seconds of a checkpoint in the running job; `every_steps`: steps between checkpoints, 0: none
    are taken; `keeps_all`: state is saved within the notice of a loss, nothing is done again; `detect_s`:
    seconds until a loss is known.
    """

    detect_s: float = 0.0
    block_s: float = 0.0
    every_steps: int = 0
    keeps_all: bool = True

    def restart(self, old: Option | None, new: Option, *, joined: bool, pending: bool) -> Stalls:
        """Stalls of starting `new` from a checkpoint. `joined`: nodes came; `pending`: in a transition."""
        again = self.start_s(new, joined) if pending else 0.0
        seconds = self.start_s(new, joined) + self.loading_s(old, new) + again
        return self.detected("restart", seconds, joined)

    def migrate(self, old: Option | None, new: Option, *, joined: bool) -> Stalls:
        """Stalls of changing to `new` with state that peers still hold."""
        if old is None:
            return self.restart(old, new, joined=joined, pending=False)
        return self.detected("migration", self.migrating_s(old, new, joined), joined)

    def reconfigure(self, new: Option) -> Stalls:
        """Stalls of recombining pipelines that were prepared in advance."""
        return self.detected("migration", self.recombining_s(new), joined=False)

    def detected(self, account: str, seconds: float, joined: bool) -> Stalls:
        """A stall, behind the seconds until a loss is known."""
        stall = Stall(account, seconds)
        return (stall,) if joined or not self.detect_s else (Stall("detection", self.detect_s), stall)

    @abstractmethod
    def start_s(self, new: Option, joined: bool) -> float:
        """Seconds until processes are up again on the new layout, without state."""

    @abstractmethod
    def loading_s(self, old: Option | None, new: Option) -> float:
        """Seconds of state at a restart: its moves, and the checkpoint, of which the start has none."""

    @abstractmethod
    def migrating_s(self, old: Option, new: Option, joined: bool) -> float:
        """Seconds of a migration."""

    @abstractmethod
    def recombining_s(self, new: Option) -> float:
        """Seconds of recombining."""


@dataclass(frozen=True)
class FixedTransitions(Transitions):
    """Transitions of fixed seconds, independent of the plans, one figure per kind of transition."""

    restart_s: float = 0.0
    checkpoint_s: float = 0.0  # saving and loading at a restart, `restart_s` apart
    migrate_s: float | None = None  # None: as restarting, without the checkpoint
    reconfigure_s: float = 0.0

    def start_s(self, new: Option, joined: bool) -> float:
        """The fixed seconds of a restart."""
        del new, joined
        return self.restart_s

    def loading_s(self, old: Option | None, new: Option) -> float:
        """The fixed seconds of a checkpoint."""
        del new
        return self.checkpoint_s if old is not None else 0.0

    def migrating_s(self, old: Option, new: Option, joined: bool) -> float:
        """The fixed seconds of a migration."""
        del old, new, joined
        return self.restart_s if self.migrate_s is None else self.migrate_s

    def recombining_s(self, new: Option) -> float:
        """The fixed seconds of recombining."""
        del new
        return self.reconfigure_s


@dataclass(frozen=True)
class LayeredTransitions(Transitions):
    """Transition seconds from measured parts: processes, rendezvous, groups, model build, state over a link.

    A restart saves and loads a checkpoint (not at the start) and sends the state of all stages one after
    another; a migration sends only the largest stage, since sources and targets work in parallel.
    """

    build_s: Mapping[int, float]  # of a stage, by number of stages
    process_s: float
    rendezvous_s: float  # when nodes join
    extra_join_s: float
    group_add_s: float  # per group
    group_remove_s: float
    groups_once_s: float
    per_node: bool  # groups are counted by node, not dp + pp + 1 + dp pp
    tiers: tuple[tuple[int, float], ...]  # seconds for groups by least pipelines, where given so
    tiers_join: float  # factor on them when nodes join
    save_load_s: float
    layers: tuple[float, ...]  # parameters of every layer
    link: tuple[tuple[float, float], ...]  # (bytes, seconds), measured
    fixed_s: float | None = None  # in place of all but state and checkpoint
    _sums: dict[tuple[int, bool], float] = field(default_factory=dict, repr=False, compare=False)

    def start_s(self, new: Option, joined: bool) -> float:
        """Processes up again on the new layout, without state."""
        if self.fixed_s is not None:
            return self.fixed_s
        join = self.rendezvous_s + self.extra_join_s if joined else 0.0
        if new.stages not in self.build_s:
            raise BadInputError(
                f"the table of costs has no model_build of {new.stages} stages; known: "
                f"{', '.join(map(str, sorted(self.build_s)))}"
            )
        return join + self._groups(new, joined) + self.process_s + self.build_s[new.stages]

    def _groups(self, new: Option, joined: bool) -> float:
        """Seconds to create the communicators of the new layout."""
        if self.tiers:
            seconds = next(s for least, s in self.tiers if new.pipelines >= least)
            return self.groups_once_s + seconds * (self.tiers_join if joined else 1.0)
        each = self.group_add_s if joined else self.group_remove_s
        nodes = new.pipelines * new.stages
        count = nodes if self.per_node else new.pipelines + new.stages + 1 + nodes
        return self.groups_once_s + count * each

    def _state(self, stages: int, largest: bool) -> float:
        """Seconds to send the state of all stages one after another, or of the largest only."""
        key = (stages, largest)
        if key not in self._sums:
            times = [self.link_s(size * BYTES_PER_PARAMETER) for size in self.stage_parameters(stages)]
            self._sums[key] = max(times) if largest else sum(times)
        return self._sums[key]

    def stage_parameters(self, stages: int) -> list[float]:
        """Parameters of each stage: one extra layer in the first, the remainder in those before the last."""
        share, over = divmod(len(self.layers) - 1, stages)
        sizes = [share + 1] + [share] * (stages - 1)
        for index in range(over):
            sizes[-index - 2] += 1
        ends = [0, *accumulate(sizes)]
        return [sum(self.layers[a:b]) for a, b in pairwise(ends)]

    def link_s(self, size: float) -> float:
        """Seconds to transfer `size` bytes: interpolated between measured sizes, proportional beyond."""
        index = bisect_left(self.link, (size, 0.0))
        if index == 0:
            return self.link[0][1]
        if index >= len(self.link):
            return size / self.link[-1][0] * self.link[-1][1]
        (a, x), (b, y) = self.link[index - 1], self.link[index]
        return x + (y - x) * (size - a) / (b - a)

    def loading_s(self, old: Option | None, new: Option) -> float:
        """The checkpoint, and the state of every stage over the link."""
        return (self.save_load_s if old is not None else 0.0) + self._state(new.stages, largest=False)

    def migrating_s(self, old: Option, new: Option, joined: bool) -> float:
        """Processes and groups again, the largest stage over the link, no checkpoint."""
        del old
        return self.start_s(new, joined) + self._state(new.stages, largest=True)

    def recombining_s(self, new: Option) -> float:
        """Groups and processes, and the largest stage over the link; nothing is built anew."""
        groups = self._groups(new, joined=False) + self.process_s
        return groups + self._state(new.stages, largest=True)


def read_transitions(
    path: Path, model: str, restart_s: float | None = None
) -> tuple[LayeredTransitions | FixedTransitions, float]:
    """Transition costs from a CSV file, and samples per step where the file has them (else 0).

    Either rows `kind,model,key,seconds` (`restart_s` then replaces all but state and checkpoint), or one row
    per model: `model,samples_per_step,checkpoint_s,restart_s_incl_checkpoint,checkpoint_every_steps,
    reconfigure_s`. Raises UnknownNameError for models without rows, BadInputError for malformed rows.
    """
    rows = read_csv(path)
    header = set(rows[0]) if rows else set()
    if {"kind", "model", "key", "seconds"} <= header:
        return _layered(path, rows, model, restart_s), 0.0
    short = {name.split("_", 1)[1] if name.split("_", 1)[0] in _PREFIXES else name: name for name in header}
    if "model" not in header or not {"checkpoint_s", "restart_s_incl_checkpoint"} <= set(short):
        raise BadInputError(
            f"{path}: a table of costs has kind,model,key,seconds, or model,samples_per_step,checkpoint_s,"
            "restart_s_incl_checkpoint,checkpoint_every_steps,reconfigure_s"
        )
    known = {row["model"]: row for row in rows}
    if model not in known:
        raise unknown_name("model in the table of costs", model, known)
    row = {
        name: _seconds(path, known[model].get(column, "0"), column)
        for name, column in short.items()
        if name != "model"
    }
    block = row["checkpoint_s"]
    found = FixedTransitions(
        restart_s=row["restart_s_incl_checkpoint"] - block if restart_s is None else restart_s,
        reconfigure_s=row.get("reconfigure_s", 0.0),
        block_s=block,
        every_steps=int(row.get("checkpoint_every_steps", 0)),
        keeps_all=False,
    )
    return found, row.get("samples_per_step", 0.0)


_PREFIXES = ("varuna", "oobleck", "bamboo")


def _seconds(path: Path, text: str, where: str) -> float:
    try:
        value = float(text or "0")
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise BadInputError(f"{path}: {where} {text!r}: a number, zero or more, is wanted")
    return value


def _layered(
    path: Path, rows: list[dict[str, str]], model: str, restart_s: float | None
) -> LayeredTransitions:
    names = sorted({row["model"] for row in rows if row["kind"] == "model_build"})
    if model not in names:
        raise unknown_name("model in the table of costs", model, names)

    def value(kind: str, key: str = "", of: str = "", default: float | None = None) -> float:
        for row in rows:
            if row["kind"] == kind and row["key"] == key and row["model"] == of:
                return _seconds(path, row["seconds"], kind)
        if default is not None:
            return default
        raise BadInputError(f"{path}: no row {kind} {of} {key}".rstrip())

    build = {
        int(row["key"].removeprefix("stages=")): _seconds(path, row["seconds"], "model_build")
        for row in rows
        if row["kind"] == "model_build" and row["model"] == model
    }
    link = sorted(
        (float(row["key"].removeprefix("bytes=")), _seconds(path, row["seconds"], "p2p"))
        for row in rows
        if row["kind"] == "p2p"
    )
    first, middle, last = (value("layer_params", key, model) for key in ("first", "middle", "last"))
    unlike = UNLIKE_LAYERS.get(model, ())
    between = round((value("params", "all layers", model) - first - last - sum(unlike)) / middle)
    groups = _groups_of(path, rows, model)
    return LayeredTransitions(
        build_s=build,
        process_s=value("process_start", "", model),
        rendezvous_s=value("rendezvous"),
        extra_join_s=value("extra_restart", "", model, 0.0),
        group_add_s=groups[0],
        group_remove_s=groups[1],
        groups_once_s=0.035,
        per_node=groups[2],
        tiers=groups[3],
        tiers_join=1.5,
        save_load_s=value("checkpoint_save_load"),
        layers=(first, *[middle] * between, *unlike, last),
        link=tuple(link),
        fixed_s=restart_s,
    )


def _groups_of(
    path: Path, rows: list[dict[str, str]], model: str
) -> tuple[float, float, bool, tuple[tuple[int, float], ...]]:
    """(seconds per group when nodes join, and leave, whether groups count by node, seconds by pipelines)."""
    own = [row for row in rows if row["kind"] == "group_rebuild" and model in row["model"].split("/")]
    name = model.split("-", maxsplit=1)[0]
    family = [row for row in rows if row["kind"] == "group_rebuild" and row["model"] == name]
    add = remove = 0.0
    per_node = False
    for row in (*family, *own):
        if "/" in row["seconds"]:
            numbers = [_seconds(path, part.strip(), "group_rebuild") for part in row["seconds"].split("/")]
            least = [int(part.partition(">=")[2] or 0) for part in row["key"].split(",")[0].split("/")]
            return 0.0, 0.0, False, tuple(zip(least, numbers, strict=True))
        seconds = _seconds(path, row["seconds"], "group_rebuild")
        per_node = per_node or row["key"].startswith("per node")
        if row["key"].endswith("add"):
            add = seconds
        else:
            remove = seconds
    return add, remove, per_node, ()


@lru_cache(maxsize=1)
def free_transitions() -> FixedTransitions:
    """Transitions that cost nothing, for upper bounds."""
    return FixedTransitions()
