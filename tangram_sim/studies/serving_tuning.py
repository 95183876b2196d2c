"""Tune engine settings of a fleet's replicas for the most requests within the objective.

Settings are keys of a replica in a fleet file. Every kind of replica is tuned alone on its share of the
requests, one setting after the other, for the greatest simulated rate at which 99 % of the requests meet the
objective.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, product
from math import isfinite
from operator import itemgetter
from typing import Any

import numpy as np
from pydantic import Field

from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.models import Model
from tangram_sim.serving.fleet import FleetReplica
from tangram_sim.serving.fleet_file import ServiceFleet, read_fleet
from tangram_sim.serving.fleet_schema import FleetIn
from tangram_sim.serving.outcome import Slo
from tangram_sim.serving.workload import Workload
from tangram_sim.serving_planners.degrees import degrees_on
from tangram_sim.studies.documents import Document, VersionedAnswer
from tangram_sim.studies.serving_rates import GOOD, at_rate, busy_rate, greatest_rate, replica_keeps
from tangram_sim.studies.serving_requests import nearest_types
from tangram_sim.studies.serving_simulation import simulate_service

Setting = int | float | str
SEATS, BUDGET = "max_sequences", "max_batched_tokens"
# What is tried of the two limits that change no output; of memory and number formats what the caller allows.
LIMITS: Mapping[str, Sequence[Setting]] = {
    SEATS: (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024),
    BUDGET: (256, 512, 1024, 2048, 4096, 8192, 16384),
}
DEGREES, DRAFTS = "degrees", "drafts"
ALLOWED = ("memory_fraction", "precision", "kv_precision", DEGREES, DRAFTS)
BETTER = 1.01  # times the best rate so far, before settings are looked at closer
_STARTS = 48  # settings all over the choices that are tried beside
_PASSES = 3  # over all settings
_NEAR = (1.3, 0.77, 1.12, 0.89)  # times a limit found, tried in the end
_PROMPTS = (0.5, 1.0, 2.0)  # whole prompts in the budget of an iteration, tried as well


class TunedReplicaDocument(Document):
    """The settings of one kind of replica, and the rates at which it keeps the objective alone."""

    name: str
    count: int
    settings: dict[str, int | float | str]
    changed: dict[str, int | float | str] = Field(description="those that the engine's defaults lack")
    goodput_rps: float = Field(description="requests a second of one replica, as played")
    default_goodput_rps: float = Field(description="the same with the settings of the file")
    bound_rps: float = Field(description="none of the settings keeps the objective on average beyond this")


class ServeTuneDocument(VersionedAnswer):
    """Output of `tangram serve tune --json`: the fleet with tuned settings; rates in requests a second."""

    replicas: list[TunedReplicaDocument]
    goodput_rps: float = Field(description="of the fleet, as played: 99 % of the requests are good")
    default_goodput_rps: float = Field(description="the same with the settings of the file")
    bound_rps: float
    fleet: dict[str, Any] = Field(description="for `serve simulate` and `serve export`")
    played: int = Field(description="settings and rates that were played")
    notes: list[str] = Field([])
    planning_cpu_s: float = 0.0


def tune_service(
    data: Mapping[str, Any],
    workload: Workload,
    slo: Slo,
    hwdb: Hwdb,
    choices: Mapping[str, Sequence[Setting]] | None = None,
) -> ServeTuneDocument:
    """The fleet in `data` (keys of a fleet file) with the settings that serve the most requests within `slo`.

    `choices`: further settings to try, by key of ALLOWED; degrees (tp, attention_dp, ep) of models with
    experts are words like `tp1 dp4 ep4`, drafts are for replicas with an `acceptance`. Never worse than the
    file's settings on these requests. Raises BadInputError, InfeasibleError.
    """
    begun = time.process_time()
    if not isfinite(slo.ttft_s):
        raise BadInputError("settings are tuned for an objective with a first token: give `slo=` like ttft=1")
    if workload.rate_rps <= 0:
        raise BadInputError("settings are tuned for a rate: the requests of this workload come all at once")
    for key in choices or {}:
        if key not in ALLOWED:
            raise BadInputError(f"`choices`: {key!r} given; known are {', '.join(ALLOWED)}")
    given = read_fleet(dict(data), hwdb)
    if given.link is not None:
        raise BadInputError("replicas that only prefill or decode have no settings to tune together yet")
    tuned, told, played = [], [], 0
    for place, entry in enumerate(data["replicas"]):
        if entry.get("costs"):
            raise BadInputError(f"replica {place} has costs of its own: no setting of an engine changes them")
        work = _own_requests(given, place, workload)
        allowed = {**LIMITS, **_allowed(choices or {}, data, entry, place)}
        found = _Tuning(data, entry, work, slo, hwdb, allowed).run()
        tuned.append(with_settings(entry, found.settings))
        told.append(found.document(entry, given, place))
        played += found.played
    # Routed as before, or as many requests to each replica as it serves alone; replicas may gain alone what
    # the fleet does not.
    fleets = [dict(data), {**data, "replicas": tuned}, {**data, "replicas": _shared_out(tuned, told)}]
    rates = [greatest_rate(_fleet_keeps(fleet, workload, slo, hwdb), workload.rate_rps) for fleet in fleets]
    best = max(range(len(fleets)), key=lambda number: (rates[number], -number))
    if rates[best] <= 0:
        raise InfeasibleError(
            f"no settings keep the objective for {GOOD:.0%} of the requests at any rate: give a longer "
            "`slo=`, more GPUs to a replica or fewer bits"
        )
    return ServeTuneDocument(
        replicas=told,
        goodput_rps=rates[best],
        default_goodput_rps=rates[0],
        bound_rps=sum(tuned_replica.bound_rps * tuned_replica.count for tuned_replica in told),
        fleet=fleets[best],
        played=played,
        notes=list(workload.notes),
        planning_cpu_s=time.process_time() - begun,
    )


def _allowed(
    choices: Mapping[str, Sequence[Setting]], data: Mapping[str, Any], entry: Mapping[str, Any], place: int
) -> dict[str, Sequence[Setting]]:
    """The choices for one kind of replica. Raises BadInputError for drafts that cannot be tuned."""
    found = dict(choices)
    if found.get(DRAFTS):
        if "acceptance" not in entry:
            raise BadInputError(
                f"replica {place} has no `acceptance`, the chance that a draft token is accepted"
            )
        # Where degrees are chosen, too, drafts are left out beside those that the engine refuses them with.
        if reason := _undrafted(data, {**entry, "attention_dp": 1} if found.get(DEGREES) else entry):
            raise BadInputError(f"replica {place} has draft tokens to try, which {reason}")
    if DEGREES in found:
        model = load_model(entry.get("model") or data["model"])
        found[DEGREES] = [each for each in found[DEGREES] if each in degrees_of(model, entry)]
    return found


def _undrafted(data: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """Why a replica of this fleet cannot be started with draft tokens; "" if it can."""
    fleet = FleetIn.read({**data, "replicas": [entry]}, "the fleet")
    return fleet.replicas[0].drafts_refused(fleet.engine)


def degrees_of(model: Model, entry: Mapping[str, Any]) -> list[str]:
    """All (tp, attention_dp, ep), as words, for a model with experts on a one-stage replica's GPUs."""
    stages = entry.get("stages") or [entry]
    if len(stages) > 1 or entry.get("pp", 1) > 1:
        return []
    ranks = stages[0].get("tp", 1) * entry.get("attention_dp", 1)
    return [f"tp{tp} dp{groups} ep{ep}" for tp, groups, ep in degrees_on(model, ranks)]


def with_settings(entry: Mapping[str, Any], settings: Mapping[str, Setting]) -> dict[str, Any]:
    """A replica's entry of a fleet file with these settings; degrees in words become keys."""
    found = {**entry, **{key: value for key, value in settings.items() if key != DEGREES}}
    if DEGREES in settings:
        if stages := found.pop("stages", None):
            found["gpu"] = stages[0]["gpu"]
        degrees = (int(word[2:]) for word in str(settings[DEGREES]).split())
        found["tp"], found["attention_dp"], found["ep"] = degrees
    return found


def _shared_out(
    entries: Sequence[Mapping[str, Any]], told: Sequence[TunedReplicaDocument]
) -> list[dict[str, Any]]:
    """The entries with shares of their model's requests in proportion to the rates that they serve alone."""
    able = [tuned_replica.goodput_rps * tuned_replica.count for tuned_replica in told]
    found = []
    for entry, mine in zip(entries, able, strict=True):
        whole = sum(
            rate
            for rate, other in zip(able, entries, strict=True)
            if other.get("model") == entry.get("model")
        )
        width = len(entry.get("shares") or [1.0])
        found.append({**entry, "shares": [mine / whole if whole else 1.0] * width})
    return found


def _fleet_keeps(
    data: Mapping[str, Any], workload: Workload, slo: Slo, hwdb: Hwdb
) -> Callable[[float], bool]:
    fleet = read_fleet(dict(data), hwdb)
    router = "weighted" if fleet.shares else "round_robin"

    def keeps(rate_rps: float) -> bool:
        told, _ = simulate_service(fleet, at_rate(workload, rate_rps, slo), router=router, slo=slo)
        return told.good_share >= GOOD

    return keeps


def _own_requests(fleet: ServiceFleet, place: int, workload: Workload) -> Workload:
    """As many requests as the workload has, drawn by the shares that replicas of entry `place` receive."""
    shares = np.array(fleet.shares.get(_names(fleet)[place], ()))
    if len(shares) < 2 or not shares.any():
        return workload
    weights = shares[nearest_types(workload, fleet.types)]
    drawn = np.random.default_rng(0).choice(len(workload), len(workload), p=weights / weights.sum())
    return replace(workload.chosen(np.sort(drawn)), arrival_s=workload.arrival_s)


def _names(fleet: ServiceFleet) -> dict[int, str]:
    """The name of one replica of every entry, by the entry's place in the file."""
    return {
        int(fleet_replica.name.partition(":")[0].partition(".")[0]): fleet_replica.name
        for fleet_replica in fleet.everyone
    }


@dataclass
class _Tuning:
    """The search of one replica's settings, one after the other: from the file's and the best of many."""

    data: Mapping[str, Any]
    entry: Mapping[str, Any]
    workload: Workload
    slo: Slo
    hwdb: Hwdb
    choices: Mapping[str, Sequence[Setting]]
    settings: dict[str, Setting] = field(default_factory=dict)
    best_rps: float = 0.0
    default_rps: float = 0.0
    played: int = 0

    def __post_init__(self) -> None:
        self._built = cache(self._build)

    def run(self) -> "_Tuning":
        """Run the search; returns itself."""
        self.default_rps = self._rate({}, 0.0)
        found: list[tuple[float, dict[str, Setting]]] = []
        for starts in ((), self._spread()):
            self.settings, self.best_rps = {}, self.default_rps
            for settings in starts:
                self._take(settings)
            if self.settings or not found:  # else the search from the file's own would be made again
                self._descend()
            found.append((self.best_rps, self.settings))
        self.best_rps, self.settings = max(found, key=itemgetter(0))
        return self

    def _descend(self) -> None:
        """Change one setting after the other, as long as any of them gains."""
        prompt = float(self.workload.input_tokens.mean())
        for _ in range(_PASSES):
            before = self.best_rps
            for key, values in self.choices.items():
                self._try(key, values)
            running = self._limit(SEATS)
            self._try(BUDGET, [max(round(times * prompt) + running, running) for times in _PROMPTS])
            if self.best_rps <= before * BETTER:
                break
        for key in (SEATS, BUDGET):
            for factor in _NEAR:
                self._try(key, [max(round(factor * self._limit(key)), 1)])

    def _limit(self, key: str) -> int:
        """A limit in force (concurrent requests or tokens): tuned, from the file, or the default."""
        replica = self._built(tuple(self.settings.items()))
        assert replica is not None
        return replica.rules.seats if key == SEATS else replica.rules.budget_tokens

    def _try(self, key: str, values: Sequence[Setting]) -> None:
        """Adopt the best value of one setting if it beats the best rate so far."""
        for value in values:
            if value == self.settings.get(key, self.entry.get(key)):
                continue
            self._take({**self.settings, key: value})

    def _take(self, settings: dict[str, Setting]) -> None:
        """Take settings that serve more than what is found."""
        rate = self._rate(settings, BETTER * self.best_rps)
        if rate > self.best_rps:
            self.settings, self.best_rps = settings, rate

    def _spread(self) -> Iterator[dict[str, Setting]]:
        """Settings spread evenly over all values of all choices together (Roberts' additive recurrence).

        Changed one after the other, settings stay where only two changed together would gain.
        """
        choices = {key: values for key, values in self.choices.items() if values}
        golden = 2.0
        for _ in range(30):
            golden = (1.0 + golden) ** (1.0 / (len(choices) + 1))
        for number in range(_STARTS):
            at = [(0.5 + number * golden**-power) % 1.0 for power in range(1, len(choices) + 1)]
            yield {
                key: values[int(part * len(values))]
                for part, (key, values) in zip(at, choices.items(), strict=True)
            }

    def _rate(self, settings: Mapping[str, Setting], floor: float) -> float:
        replica = self._built(tuple(settings.items()))
        if replica is None:
            return 0.0
        keeps = replica_keeps(replica, self.workload, self.slo)

        def counted(rate_rps: float) -> bool:
            self.played += 1
            return keeps(rate_rps)

        return greatest_rate(counted, self.workload.rate_rps, floor)

    def _build(self, settings: tuple[tuple[str, Setting], ...]) -> FleetReplica | None:
        """The replica with these settings; None where it does not fit its GPUs or no engine starts it."""
        skipped = ("count", "shares", "up")
        alone = {key: value for key, value in self.entry.items() if key not in skipped}
        data = {key: value for key, value in self.data.items() if key not in ("replicas", "types")}
        mine, changed = with_settings(alone, dict(settings)), {key for key, _ in settings}
        if changed & {DRAFTS, DEGREES} and mine.get(DRAFTS) and _undrafted(data, mine):
            return None
        try:
            built = read_fleet({**data, "replicas": [mine]}, self.hwdb)
        except InfeasibleError:
            if not settings:
                raise
            return None
        return replace(built.replicas[0], model="")

    def bound_rps(self) -> float:
        """Upper bound on requests/s, whatever the settings.

        For each number format, with the most concurrent requests and tokens: the rate at which a replica is
        always busy, decoding as many at once as memory holds or the time per token allows.
        """
        allowed = [[(), *(((key, value),) for value in self.choices.get(key, ()))] for key in ALLOWED]
        found = self.best_rps
        for formats in product(*allowed):
            for widest in ((), ((SEATS, 1024), (BUDGET, 16384))):
                replica = self._built((*chain(*formats), *widest))
                if replica is not None:
                    found = max(found, busy_rate(replica, self.workload, self.slo))
        return found

    def document(self, entry: Mapping[str, Any], fleet: ServiceFleet, place: int) -> TunedReplicaDocument:
        """The tuned settings and rates of this replica as a document."""
        replica = self._built(tuple(self.settings.items()))
        assert replica is not None
        rules = replica.rules
        return TunedReplicaDocument(
            name=_names(fleet)[place].partition(": ")[2],
            count=entry.get("count", 1),
            settings={SEATS: rules.seats, BUDGET: rules.budget_tokens, **self.settings},
            changed=self.settings,
            goodput_rps=self.best_rps,
            default_goodput_rps=self.default_rps,
            bound_rps=self.bound_rps(),
        )
