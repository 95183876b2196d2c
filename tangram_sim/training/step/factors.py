"""Sources of a step's prediction error: seconds of its critical path per factor, and factors' errors.

A factor is one quantity that may be wrong everywhere at once: the efficiency of a kernel class on a GPU kind,
the rate of a class of links, the host's launch time, what a software stack adds or hides. All ops that depend
on one factor have the same relative error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot

import numpy as np

from tangram_sim.clusters import Link
from tangram_sim.cost.collectives import Group
from tangram_sim.cost.kernels import Floats
from tangram_sim.hwdb import FittedValue
from tangram_sim.layers.atoms import atom_kinds
from tangram_sim.layers.chain import class_seconds
from tangram_sim.layers.program import CLASSES
from tangram_sim.training.stage.pricing import Pricer
from tangram_sim.training.stage.setting import Setting

NETWORK = Link("network", "network", 0.0, 0.0)


def log_sigma(estimate: FittedValue) -> float:
    """Standard deviation of the logarithm of an estimate."""
    return estimate.sigma / estimate.value if estimate.value > 0 else 0.0


@dataclass
class Totals:
    """Seconds per factor, arrays of K, and each factor's log standard deviation."""

    layouts: int
    seconds: dict[str, Floats] = field(default_factory=dict)
    sigma: dict[str, float] = field(default_factory=dict)

    def add(self, factor: str, sigma: float, seconds: Floats) -> None:
        """Add `seconds` [K] to `factor`."""
        self.sigma[factor] = sigma
        known = self.seconds.get(factor)
        self.seconds[factor] = seconds if known is None else known + seconds

    def add_link(self, setting: Setting, seconds: Floats, over: Group) -> None:
        """Add seconds of collectives to the factor of the slowest class of links that their groups use."""
        hwdb, island = setting.hwdb, setting.island
        inside = over.inside == over.ranks  # the whole group in one scale-up domain
        paired = inside & (over.ranks <= 2) & (island.bridge is not None)
        for link, where in (
            (island.intra, inside & ~paired),
            (island.bridge or island.intra, paired),
            (NETWORK, ~inside),
        ):
            if where.any():
                self.add(
                    f"link {link.name}",
                    log_sigma(hwdb.link_efficiency(link)),
                    np.where(where, seconds, 0.0),
                )

    def add_classes(self, setting: Setting, seconds: Floats) -> None:
        """Count seconds per class of ops, (K, CLASSES), of a stage priced under `setting`."""
        job, gpu = setting.job, setting.island.gpu
        by_class = dict(zip(CLASSES, seconds.T, strict=True))
        at = setting.hwdb.efficiency(gpu, job.precision.compute, job.stack)
        vector = setting.hwdb.efficiency(gpu, job.precision.vector, job.stack)
        for name, dtype, estimate in (
            ("gemm", job.precision.compute, at.gemm_efficiency),
            ("attention", job.precision.vector, vector.attention_efficiency),
            ("memory", "any", at.memory_efficiency),
        ):
            self.add(f"{name} {gpu.name} {dtype}", log_sigma(estimate), by_class[name])
            self.add(f"kernels under {job.stack}", log_sigma(at.time_scale), by_class[name])
        share = vector.attention_scale, vector.attention_share
        doubt = hypot(*(log_sigma(estimate) for estimate in share))
        self.add(f"attention under {job.stack}", doubt, by_class["attention"])
        self.add(f"host under {job.stack}", log_sigma(at.dispatch_s_per_kernel), by_class["dispatch"])
        for name, over, exposed in (
            ("tensor_parallel", setting.tp_group, at.tensor_exposed),
            ("data_parallel", setting.dp_group, at.data_exposed),
            ("context_parallel", setting.cp_group, None),
            ("expert_parallel", setting.ep_group, None),
        ):
            if by_class[name].any():
                self.add_link(setting, by_class[name], over)
                if exposed is not None:
                    self.add(f"{name} under {job.stack}", log_sigma(exposed), by_class[name])


def as_class(name: str, seconds: Floats) -> Floats:
    """A table of seconds per class of ops, (K, CLASSES), with `seconds` [K] in class `name`."""
    table = np.zeros((len(seconds), len(CLASSES)))
    table[:, CLASSES.index(name)] = seconds
    return table


@dataclass
class ClassShares:
    """Shares of the classes of ops in passes over slices, (K, CLASSES); equal slices are simulated once."""

    _found: dict[tuple[int, tuple[int, ...], str], Floats] = field(default_factory=dict)
    _kept: list[Pricer] = field(default_factory=list)  # ids stay theirs

    def seconds(self, pricer: Pricer, start: int, stop: int, direction: str) -> Floats:
        """Seconds per class on the critical path of one pass over atoms [start, stop)."""
        key = (id(pricer), atom_kinds(pricer.setting.model)[start:stop], direction)
        if key not in self._found:
            atoms = pricer.stage_atoms(start, stop)
            ordered = atoms if direction == "forward" else atoms[::-1]
            self._found[key] = class_seconds(pricer.programs(ordered, direction))
            self._kept.append(pricer)
        return self._found[key]

    def of(self, pricer: Pricer, start: int, stop: int, direction: str) -> Floats:
        """Shares of each class of ops in the seconds of a pass, (K, CLASSES)."""
        seconds = self.seconds(pricer, start, stop, direction)
        shares: Floats = seconds / np.maximum(seconds.sum(axis=1, keepdims=True), 1e-300)
        return shares


@dataclass(frozen=True)
class PathSeconds:
    """Seconds on the critical path of K steps by where they are spent. Arrays (K, S * V) and (K, S)."""

    forward: Floats
    backward: Floats  # all but the last microbatch's, and the input part of it where weights are apart
    weight: Floats
    send: Floats  # over the boundary behind each stage, both directions
    sync: Floats
    optimizer: Floats
    tied: Floats  # (K,)

    @classmethod
    def of(cls, slots: Floats, stages: int, chunks: int) -> "PathSeconds":
        """From seconds per slot of a step template, (K, slots): see `StepTemplate.table`."""
        places = stages * chunks
        cuts = np.cumsum([places] * 5 + [stages] * 4)
        forward, backward, last, weight, last_weight, ahead, back, sync, optimizer, tied = np.split(
            slots, cuts, axis=1
        )
        weights = weight + last_weight
        return cls(
            forward,
            backward + last,
            weights,
            send=ahead + back,
            sync=sync,
            optimizer=optimizer,
            tied=tied[:, 0],
        )


@dataclass(frozen=True)
class StageKind:
    """Stages of K steps with equal prices: their pricer, the slice of each chunk, and the stages' numbers."""

    pricer: Pricer
    runs: tuple[tuple[int, int], ...]
    stages: tuple[int, ...]


def step_factors(
    path: PathSeconds,
    kinds: Sequence[StageKind],
    chunks: int,
    shares: ClassShares,
    roads: Mapping[int, tuple[str, float]],
) -> Totals:
    """Seconds per factor on the critical path of K steps.

    `roads` gives (factor, sigma) of the link after each stage; key -1 is the link for tied embeddings.
    """
    totals = Totals(len(path.tied))
    for kind in kinds:
        setting, found = kind.pricer.setting, np.zeros((totals.layouts, len(CLASSES)))
        own = list(kind.stages)
        for chunk, (start, stop) in enumerate(kind.runs):
            places = [stage * chunks + chunk for stage in own]
            for seconds, direction in ((path.forward, "forward"), (path.backward, "backward")):
                spent = seconds[:, places].sum(axis=1)
                found = found + spent[:, None] * shares.of(kind.pricer, start, stop, direction)
            found = found + as_class("gemm", path.weight[:, places].sum(axis=1))
        found = found + as_class("data_parallel", path.sync[:, own].sum(axis=1))
        found = found + as_class("memory", path.optimizer[:, own].sum(axis=1))
        totals.add_classes(setting, found)
    for stage, (factor, sigma) in roads.items():
        spent = path.tied if stage < 0 else path.send[:, stage]
        if spent.any():
            totals.add(factor, sigma, spent)
    return totals


def variance(totals: Totals, step_s: Floats) -> Floats:
    """Variance of the logarithm of K steps from the errors of their factors, [K]."""
    share = sum((seconds / step_s * totals.sigma[name]) ** 2 for name, seconds in totals.seconds.items())
    return np.zeros(len(step_s)) + share


def difference_variance(a: Mapping[str, float], b: Mapping[str, float], sigma: Mapping[str, float]) -> float:
    """Variance of the log ratio of two steps, from each factor's share of either step and its error.

    An error with the same share in both cancels.
    """
    return hypot(*((a.get(name, 0.0) - b.get(name, 0.0)) * error for name, error in sigma.items())) ** 2
