"""Power of training: clocks under caps, watts of a plan, and its terms of power, carbon and money.

Assumed, as no measurements of training under caps are published: at its highest clock a GPU draws its board's
limit in large matrix products; the energy of an operation grows with the square of the clock, so power above
the constant part grows with the cube; memory and links keep their rates.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tangram_sim.clusters import Cluster, Gpu
from tangram_sim.cost.energy import LEAST_CLOCK, Activity, GpuPower, gpu_power
from tangram_sim.errors import BadInputError, InfeasibleError, unknown_name
from tangram_sim.hwdb import Hwdb
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.serving_answer import INTERVAL
from tangram_sim.units import percent, read_watts

MEMORY_SHARE = 0.5  # assumed: of the time without arithmetic, what memory would need at its datasheet rate
SIGMA = 0.25  # of the logarithm of watts in training: assumed, for no published rows exist beside them

Clocks = Mapping[str, float]  # relative to the highest, by name of GPU kind

GOALS = ("time", "energy", "cost")
TIME = (("time", 1.0),)


@dataclass(frozen=True, slots=True)
class PowerTerms:
    """Terms on power: watts by GPU kind and of the site, PUE, carbon, electricity, objective weights."""

    caps_w: tuple[tuple[str, float], ...] = ()  # by GPU kind; "": of every kind
    site_w: float = math.inf  # GPUs and hosts in the mean of a step, times PUE
    pue: float = 1.0
    carbon: float = 0.0  # grams of CO2 equivalent a kWh
    usd_per_kwh: float = 0.0  # beside the rent
    weights: tuple[tuple[str, float], ...] = TIME  # of time, energy and cost
    tokens: float = math.inf  # to train: by the days of the run nodes are rented at one price or another

    def on(self, cluster: Cluster) -> "PowerTerms":
        """The terms without caps for GPU kinds that are not in the cluster."""
        kinds = kinds_of(cluster)
        return replace(self, caps_w=tuple(cap for cap in self.caps_w if not cap[0] or cap[0] in kinds))


def caps_of(given: Sequence[str], hwdb: Hwdb) -> tuple[tuple[str, float], ...]:
    """Power caps in watts by GPU kind from `400W`, `H100=400W`. Raises BadInputError, UnknownNameError."""
    caps: dict[str, float] = {}
    for item in given:
        kind, _, watts = item.rpartition("=")
        name = hwdb.gpu(kind.strip()).name if kind else ""
        if name in caps:
            raise BadInputError(f"`power_cap=` caps {name or 'every GPU'} twice; keep one")
        caps[name] = read_watts(watts)
    return tuple(caps.items())


def weights_of(text: str) -> tuple[tuple[str, float], ...]:
    """Weights that sum to 1, from `energy` or `time=1,energy=2`. Raises BadInputError, UnknownNameError."""
    found: dict[str, float] = {}
    for item in text.split(","):
        name, _, weight = (word.strip() for word in item.partition("="))
        name = "time" if name == "throughput" else name
        if name not in GOALS:
            raise unknown_name("objective", name, GOALS)
        try:
            value = float(weight or 1)
        except ValueError:
            value = -1.0
        if not 0 <= value < math.inf or name in found:
            raise BadInputError(f"`objective={text}`: give each goal once, its weight 0 or more")
        found[name] = value
    total = sum(found.values())
    if not total:
        raise BadInputError(f"`objective={text}`: one weight must be above 0")
    return tuple((name, value / total) for name, value in found.items() if value)


def kinds_of(cluster: Cluster) -> dict[str, Gpu]:
    """The kinds of GPU of a cluster by name."""
    return {group.node.gpu.name: group.node.gpu for group in cluster.groups}


def _always_w(power: GpuPower) -> float:
    """Watts that large matrix products draw at any clock: the idle board and its memory."""
    return float(power.idle_w) + MEMORY_SHARE * float(power.memory_w)


def clock_under(power: GpuPower, cap_w: float) -> float:
    """Highest clock at which large matrix products draw at most `cap_w`, relative to the highest clock.

    1.0 at the board's limit and above; below `LEAST_CLOCK` if the cap is below the power of the lowest clock.
    """
    always, limit = _always_w(power), float(power.limit_w)
    return float(min(max((cap_w - always) / (limit - always), 0.0) ** (1 / 3), 1.0))


def cap_at(power: GpuPower, clock: float) -> float:
    """The power limit in watts that holds a GPU at this clock: the inverse of `clock_under`."""
    always = _always_w(power)
    return always + (float(power.limit_w) - always) * clock**3


def clocks_under(cluster: Cluster, caps_w: Sequence[tuple[str, float]], hwdb: Hwdb) -> dict[str, float]:
    """The clock of every GPU kind under its cap, relative to the highest.

    Raises InfeasibleError where a kind cannot be held to its cap, UnknownNameError for a kind that is not in
    the cluster, BadInputError where the power of a kind is not known.
    """
    caps, kinds = dict(caps_w), kinds_of(cluster)
    for name in caps:
        if name and name not in kinds:
            raise unknown_name("GPU kind of the cluster", name, kinds)
    clocks = {}
    for name, gpu in kinds.items():
        power = gpu_power(gpu, hwdb)
        cap_w = caps.get(name, caps.get("", float(power.limit_w)))
        clocks[name] = clock_under(power, cap_w)
        if clocks[name] < LEAST_CLOCK * (1 - 1e-6):
            least = cap_at(power, LEAST_CLOCK)
            raise InfeasibleError(
                f"a power cap of {cap_w:g} W cannot be met: {name} draws {least:,.0f} W at "
                f"{percent(LEAST_CLOCK)} of its clock; give a higher cap or leave these GPUs out"
            )
    return clocks


def clocked(cluster: Cluster, clocks: Clocks) -> Cluster:
    """The cluster with every GPU kind's compute at its clock; memory and links are unchanged."""
    groups = tuple(
        replace(group, node=replace(group.node, gpu=group.node.gpu.slowed(1.0 / clock, clock)))
        if (clock := clocks.get(group.node.gpu.name, 1.0)) != 1.0
        else group
        for group in cluster.groups
    )
    return replace(cluster, groups=groups)


@dataclass(frozen=True, slots=True)
class KindWatts:
    """Mean watts of all GPUs of one kind over a step, idle ones included."""

    gpus: int
    gpu_w: float
    host_w: float
    limit_w: float  # of all, at their boards' limits or at the caps that hold their clocks


@dataclass(frozen=True, slots=True)
class ClusterWatts:
    """Mean watts of a cluster over a step by GPU kind; `spread`: factor to each end of the 90 % interval."""

    kinds: Mapping[str, KindWatts]
    spread: float  # factor between the middle and an end of the interval
    basis: list[str]

    @property
    def total_w(self) -> float:
        """Mean watts of GPUs and hosts, without PUE."""
        return sum(kind.gpu_w + kind.host_w for kind in self.kinds.values())

    @property
    def each_w(self) -> dict[str, float]:
        """Mean watts of one GPU of every kind with its share of the host, without PUE."""
        return {name: (kind.gpu_w + kind.host_w) / kind.gpus for name, kind in self.kinds.items()}

    @property
    def most_w(self) -> float:
        """Watts if every GPU draws its limit at the same time, without PUE."""
        return sum(kind.limit_w + kind.host_w for kind in self.kinds.values())


def clocks_of(document: PlanDocument) -> dict[str, float]:
    """Clocks of a plan relative to the highest, by GPU kind; kinds that are missing run at the highest."""
    return {kind.gpu: kind.clock for kind in document.power.kinds} if document.power else {}


def cluster_watts(
    document: PlanDocument,
    cluster: Cluster,
    hwdb: Hwdb,
    clocks: Clocks | None = None,
    slower: float = 1.0,
) -> ClusterWatts:
    """Mean watts over a step of a plan that was played at these clocks, by default at its own.

    `slower`: the seconds of the step, as a factor: what a longer one does a second is less. Every verb has
    its energy from here. Raises BadInputError where the power of a GPU kind is not known.
    """
    clocks = clocks_of(document) if clocks is None else clocks
    busy = document.busy_of_ranks()
    kinds: dict[str, KindWatts] = {}
    said: dict[str, None] = {}
    sigma, rank = 0.0, 0
    for group in cluster.groups:
        gpu = group.node.gpu
        power, clock = gpu_power(gpu, hwdb), clocks.get(gpu.name, 1.0)
        sigma = max(sigma, power.sigma)
        said[f"power of {gpu.name}: {power.basis}; in training it is assumed"] = None
        cap_w, drawn = cap_at(power, clock), 0.0
        count = group.count * group.node.gpus
        for each in range(rank, rank + count):
            running = busy.get(each, 0.0)
            drawn += (1.0 - running) * float(power.idle_w)
            if running > 0.0:
                arithmetic = min(document.mfu / slower / running, 1.0)  # of the peak at this clock
                doing = Activity(1.0, 1.0, arithmetic * clock, MEMORY_SHARE * (1.0 - arithmetic))
                drawn += running * min(float(power.watts(doing, clock)), cap_w)
        rank += count
        before = kinds.get(gpu.name, KindWatts(0, 0.0, 0.0, 0.0))
        kinds[gpu.name] = KindWatts(
            before.gpus + count,
            before.gpu_w + drawn,
            before.host_w + power.host_w * count,
            before.limit_w + cap_w * count,
        )
    return ClusterWatts(kinds, math.exp(INTERVAL * math.hypot(sigma, SIGMA)), list(said))
