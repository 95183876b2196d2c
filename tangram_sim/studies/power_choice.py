"""Plans under power caps and a site limit, and the clocks that are best by time, energy or cost.

A plan is simulated at many clocks (milliseconds each); the clusters at the best clocks are planned again.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tangram_sim.clusters import Cluster
from tangram_sim.cost.energy import CURVE_SPREAD, LEAST_CLOCK, gpu_power
from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.findings import Finding, Severity, declare
from tangram_sim.hwdb import Hwdb, ReadSet
from tangram_sim.studies import api
from tangram_sim.studies.cautions import cautions
from tangram_sim.studies.forecast import document, forecast
from tangram_sim.studies.power_documents import CappedKind, PowerDocument, PowerPoint
from tangram_sim.studies.results import Result
from tangram_sim.studies.serving_answer import INTERVAL
from tangram_sim.studies.training_power import (
    TIME,
    Clocks,
    ClusterWatts,
    PowerTerms,
    cap_at,
    clocked,
    clocks_under,
    cluster_watts,
    kinds_of,
)
from tangram_sim.studies.training_run import rents_of, run_days
from tangram_sim.training.plan import Plan
from tangram_sim.units import HOUR_S

_STEP = 0.1  # of the highest clock, between clocks that are tried
_BISECTIONS = 6  # between the last clocks that exceed the site's power and the first that do not
_SEARCHED = ("partial_plans", "planning_s", "planning_cpu_s")
_BOUNDS = ("lower_bound_step_s", "lower_bound_covers", "work_bound_step_s", "pipeline_bound_step_s")

ASSUMED_CLOCKS = declare(
    "power-clocks-assumed",
    Severity.NOTE,
    "clocks under power caps follow a curve that is assumed, not measured: energy of an operation goes with "
    "the square of the clock",
)
SITE_NOT_BINDING = declare(
    "power-site-not-binding",
    Severity.NOTE,
    "a site power of {limit_kw:,.4g} kW does not bind: the plan draws {drawn_kw:,.4g} kW in the mean of a "
    "step, {most_kw:,.4g} kW at most",
)
CAPPED_MFU = declare(
    "power-mfu", Severity.NOTE, "MFU is of the peaks that the power caps leave, not of the datasheet's"
)


@dataclass(frozen=True)
class _Point:
    """A plan simulated at some clocks, and its power."""

    result: Result
    watts: ClusterWatts
    at: PowerPoint


@dataclass(frozen=True)
class _Choice:
    """One choice of clocks: the cluster at full clocks, the terms, and the highest clocks under caps."""

    cluster: Cluster
    terms: PowerTerms
    hwdb: Hwdb
    highest: dict[str, float]
    rent_for: Callable[[float], tuple[float | None, list[str]]]  # by the days of the run

    def point(self, result: Result, clocks: Clocks) -> _Point:
        """Power and cost of a result that was simulated at these clocks."""
        watts = cluster_watts(result.document, self.cluster, self.hwdb, clocks)
        site_kw, rate, usd = watts.total_w * self.terms.pue / 1000, result.document.tokens_per_s, None
        rent, _ = self.rent_for(run_days(result.document, self.cluster, self.terms.tokens))
        if rent is not None:
            usd = (rent + site_kw * self.terms.usd_per_kwh) / HOUR_S / rate * 1e6
        shown = PowerPoint(
            clocks=dict(clocks),
            step_s=result.step_s,
            site_kw=site_kw,
            joules_per_token=site_kw * 1000 / rate,
            usd_per_million_tokens=usd,
        )
        return _Point(result, watts, shown)

    def played(self, plan: Plan, clocks: Clocks, searched: Result | None = None) -> _Point:
        """A plan simulated at these clocks; bounds and counts are those of the search `searched`."""
        reads = ReadSet()
        hwdb = self.hwdb.read_into(reads)
        moved = replace(plan, cluster=clocked(self.cluster, clocks))
        seen = forecast(moved, hwdb)
        if searched is None:
            written = document(seen, hwdb, reads, seen.step_s)
        else:
            written = document(seen, hwdb, reads, api.lower_bound(moved, hwdb), cautions(seen))
            kept = searched.document
            names = _SEARCHED + (_BOUNDS if kept.lower_bound_step_s <= seen.step_s else ())
            written = written.with_fields(**{name: getattr(kept, name) for name in names})
        return self.point(Result(written, seen), clocks)

    def fits(self, point: _Point) -> bool:
        """Whether the power of `point` is within the site's limit."""
        return point.at.site_kw <= self.terms.site_w / 1000 * (1 + 1e-9)

    def score(self, point: _Point, weights: Iterable[tuple[str, float]]) -> float:
        """Objective to minimise: weighted sum of the logarithms of step, joules and dollars per token."""
        at = point.at
        values = {"time": at.step_s, "energy": at.joules_per_token, "cost": at.usd_per_million_tokens}
        return sum(weight * math.log(values[name] or 1.0) for name, weight in weights)

    def lowered(self, clocks: Clocks, names: Iterable[str]) -> dict[str, float]:
        """The clocks with those of the named kinds one step lower, not below LEAST_CLOCK."""
        return {**clocks, **{name: max(clocks[name] - _STEP, LEAST_CLOCK) for name in names}}

    def searched(self, start: _Point, weights: tuple[tuple[str, float], ...]) -> list[_Point]:
        """Greedy descent from the highest clocks: each step lowers one GPU kind's clock, or all.

        Chosen by score lost per kW saved until the site's limit is met, then by score, while a step helps.
        """
        plan, now = start.result.forecast.plan, self.played(start.result.forecast.plan, self.highest)
        found = [now]
        kinds = list(self.highest)
        while True:
            steps = [[name] for name in kinds] + ([kinds] if len(kinds) > 1 else [])
            tried = [self.lowered(now.at.clocks, names) for names in steps]
            beside = [self.played(plan, clocks) for clocks in tried if clocks != now.at.clocks]
            if not beside:
                return found
            here = self.score(now, weights)

            def price(point: _Point, here: float = here, now: _Point = now) -> float:
                saved = now.at.site_kw - point.at.site_kw
                return (self.score(point, weights) - here) / saved if saved > 0 else math.inf

            fits = self.fits(now)
            best = min(beside, key=(lambda p: self.score(p, weights)) if fits else price)
            if fits and self.score(best, weights) >= here:
                return found
            if not fits and self.fits(best):
                best = self.nearest(plan, now, best)
            found.append(best)
            now = best

    def curve(self, plan: Plan, points: Iterable[PowerPoint]) -> list[PowerPoint]:
        """Pareto front of step time and power, fastest first.

        Of `points`, and of the plan at the highest clocks and at those of all kinds lowered step by step.
        """
        found, clocks = list(points), self.highest
        while True:
            found.append(self.played(plan, clocks).at)
            lower = self.lowered(clocks, clocks)
            if lower == clocks:
                break
            clocks = lower
        least, kept = math.inf, list[PowerPoint]()
        for at in sorted(found, key=lambda at: (at.step_s, at.site_kw)):
            if at.site_kw < least:
                least = at.site_kw
                kept.append(at)
        return kept

    def nearest(self, plan: Plan, above: _Point, below: _Point) -> _Point:
        """The highest clocks between `above` and `below` that meet the site's limit, by bisection."""
        for _ in range(_BISECTIONS):
            middle = {name: (above.at.clocks[name] + clock) / 2 for name, clock in below.at.clocks.items()}
            point = self.played(plan, middle)
            above, below = (above, point) if self.fits(point) else (point, below)
        return below


def plan_under_power(
    cluster: Cluster, terms: PowerTerms, hwdb: Hwdb, planned: Callable[[Cluster], Result]
) -> Result:
    """The best plan by the objective under power caps and the site's limit, with their cost in time.

    `planned` plans, or estimates, a cluster. Caps that lower no clock change nothing. Raises InfeasibleError
    where clocks cannot go low enough, BadInputError where a power or price that is needed is not known.
    """
    highest = clocks_under(cluster, terms.caps_w, hwdb)
    rent_for = rents_of(cluster, hwdb)
    rent, why = rent_for(math.inf)
    if rent is None and any(name == "cost" for name, _ in terms.weights):
        raise BadInputError(f"`objective=cost`: {'; '.join(why)}; give `usd_per_hour` of the nodes")
    choice = _Choice(cluster, terms, hwdb, highest, rent_for)
    unhindered = dict.fromkeys(highest, 1.0)
    free = choice.point(planned(cluster), unhindered)
    start = free if highest == unhindered else choice.point(planned(clocked(cluster, highest)), highest)
    best, tried = _best(choice, start, TIME, planned, [])
    if terms.weights != TIME:
        best, tried = _best(choice, best, terms.weights, planned, tried)
    if best.at.clocks == start.at.clocks and best.at.step_s == start.at.step_s:
        best = start  # as the search wrote it
    points = sorted((point.at for point in tried), key=lambda at: at.step_s)
    curve = choice.curve(best.result.forecast.plan, [best.at, *points])
    found = _document(choice, best, free.at, points, curve)
    written = best.result.document
    written = written.with_fields(power=found).with_findings([*written.findings, *_notes(found)])
    return replace(best.result, document=written)


def _best(
    choice: _Choice,
    start: _Point,
    weights: tuple[tuple[str, float], ...],
    planned: Callable[[Cluster], Result],
    tried: list[_Point],
) -> tuple[_Point, list[_Point]]:
    """(the best point within the site's limit, all points tried); its clocks are planned anew."""
    points = [start, *tried, *choice.searched(start, weights)]
    fitting = [point for point in points if choice.fits(point)]
    if not fitting:
        lowest = min(points, key=lambda point: point.at.site_kw)
        raise InfeasibleError(
            f"a site power of {choice.terms.site_w / 1000:,.4g} kW cannot be met: with every GPU at its "
            f"lowest clock this cluster draws {lowest.at.site_kw:,.4g} kW (PUE {choice.terms.pue:g}); "
            "allow more, or leave nodes out"
        )
    best = min(fitting, key=lambda point: choice.score(point, weights))
    if best.at.clocks == start.at.clocks:
        return best, points
    searched = planned(clocked(choice.cluster, best.at.clocks))
    anew = choice.point(searched, best.at.clocks)
    if choice.fits(anew) and choice.score(anew, weights) <= choice.score(best, weights):
        return anew, [*points, anew]
    return choice.played(best.result.forecast.plan, best.at.clocks, searched), points


def redrawn(result: Result, cluster: Cluster, terms: PowerTerms, hwdb: Hwdb) -> Result:
    """A result whose plan was replaced, with the power section computed again at the same clocks.

    `cluster` is the question's, at its highest clocks. A result without a power section is returned as it is.
    """
    power = result.document.power
    if power is None:
        return result
    clocks = {kind.gpu: kind.clock for kind in power.kinds}
    choice = _Choice(cluster, terms, hwdb, clocks, rents_of(cluster, hwdb))
    point = choice.point(result, clocks)
    found = _document(choice, point, power.reference, power.tried, power.curve)
    written = result.document
    codes = {finding.code for finding in written.findings}
    notes = [note for note in _notes(found) if note.code not in codes]
    written = written.with_fields(power=found).with_findings([*written.findings, *notes])
    return replace(result, document=written)


def _notes(power: PowerDocument) -> list[Finding]:
    """What is said of plans with capped GPUs, and of a limit of the site that changes nothing."""
    found = [CAPPED_MFU(), ASSUMED_CLOCKS()] if any(kind.capped for kind in power.kinds) else []
    limit_kw = power.site_limit_kw
    if limit_kw is not None and power.reference.site_kw <= limit_kw:
        most_kw, drawn_kw = power.site_kw_most, power.chosen.site_kw
        found.append(SITE_NOT_BINDING(limit_kw=limit_kw, drawn_kw=drawn_kw, most_kw=most_kw))
    return found


def _document(
    choice: _Choice,
    best: _Point,
    free: PowerPoint,
    tried: Sequence[PowerPoint],
    curve: Sequence[PowerPoint],
) -> PowerDocument:
    """The power section: the chosen plan compared with the one without caps."""
    terms, spread = choice.terms, best.watts.spread
    slower = best.at.step_s / free.step_s
    doubt = math.exp(INTERVAL * CURVE_SPREAD * abs(math.log(slower)))
    least = slower / doubt if slower < 1.0 else max(slower / doubt, 1.0)  # no cap makes a step shorter
    kinds = [
        CappedKind(
            gpu=name,
            gpus=best.watts.kinds[name].gpus,
            cap_w=cap_at(gpu_power(gpu, choice.hwdb), best.at.clocks[name]),
            clock=best.at.clocks[name],
            capped=best.at.clocks[name] < 1.0,
            mean_w=best.watts.kinds[name].gpu_w / best.watts.kinds[name].gpus,
            host_w=best.watts.kinds[name].host_w / best.watts.kinds[name].gpus,
        )
        for name, gpu in kinds_of(choice.cluster).items()
    ]
    grams = best.at.joules_per_token / 3.6e6 * terms.carbon * 1e6
    return PowerDocument(
        objective=dict(terms.weights),
        kinds=kinds,
        pue=terms.pue,
        chosen=best.at,
        reference=free,
        site_kw_low=best.at.site_kw / spread,
        site_kw_high=min(best.at.site_kw * spread, best.watts.most_w * terms.pue / 1000),
        site_kw_most=best.watts.most_w * terms.pue / 1000,
        site_limit_kw=terms.site_w / 1000 if terms.site_w < math.inf else None,
        co2_g_per_million_tokens=grams if terms.carbon else None,
        slower=slower - 1,
        slower_low=least - 1,
        slower_high=slower * doubt - 1,
        saved=1 - best.at.joules_per_token / free.joules_per_token,
        tried=list(tried),
        curve=list(curve),
    )
