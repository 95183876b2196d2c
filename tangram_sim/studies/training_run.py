"""Days, dollars and megawatt hours of training a number of tokens with a plan, with 90 % intervals.

Prices are those of the nodes' rows, else the lowest dated rent of the GPU kind, else what the cluster file
says. Failures are counted as in a purchase, by a published rate where none is stated.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tangram_sim.clusters import Cluster
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tangram_sim.hwdb.prices import TERM, Figure, Rents, gpu_rents, kind_rent, node_prices
from tangram_sim.reliability.periods import daly_interval_s, useful_share
from tangram_sim.studies.documents import PlanDocument, RunDocument
from tangram_sim.studies.results import Result
from tangram_sim.studies.training_power import PowerTerms, cluster_watts
from tangram_sim.studies.usual_failures import checkpoint_s, restart_s, usual_mtbf_hours
from tangram_sim.units import DAY_S, HOUR_S, amount_of, days_of

UNCAPPED = PowerTerms()


def training_run(
    document: PlanDocument,
    cluster: Cluster,
    hwdb: Hwdb,
    tokens: float,
    within_days: float | None = None,
    power: PowerTerms = UNCAPPED,
) -> RunDocument:
    """Days, dollars and megawatt hours of training `tokens` with a plan on `cluster`.

    All nodes of the cluster are paid for and draw power, idle ones too. From `power` come PUE, carbon and the
    price of electricity; clocks come from the document.
    """
    good, failing = _goodput(document, cluster)
    step = document.step_s
    low = (document.step_s_low or step) / step
    high = (document.step_s_high or step) / step
    days = run_days(document, cluster, tokens)
    basis, rent_for = [f"failures of nodes: {failing}"], rents_of(cluster, hwdb)
    usd_per_hour, priced = rent_for(days)
    basis += priced
    drawn = None
    try:
        drawn = cluster_watts(document, cluster, hwdb)
        basis += drawn.basis
    except BadInputError as error:
        basis.append(f"no energy: {error}")
    site_w = drawn.total_w * power.pue if drawn else None
    if power.pue != 1.0:
        basis.append(f"MWh with PUE {power.pue:g}")
    electricity = 0.0
    if power.usd_per_kwh and usd_per_hour is not None and site_w is not None:
        electricity = site_w / 1000 * power.usd_per_kwh
        usd_per_hour += electricity
        basis.append(f"electricity beside the rent: ${power.usd_per_kwh:g} a kWh")
    run_hours = days * DAY_S / HOUR_S

    def usd_for(factor: float) -> float | None:
        rent = rent_for(days * factor)[0]
        return None if rent is None else (rent + electricity) * run_hours * factor

    usd, usd_low, usd_high = usd_for(1.0), usd_for(low), usd_for(high)
    mwh, mwh_low, mwh_high = None, None, None
    if drawn is not None:
        site_mwh = power.pue * run_hours / 1e6
        mwh = drawn.total_w * site_mwh

        def apart(end: float) -> float:
            """The factor to an end of the interval of MWh, errors of watts and of time independent."""
            changed = cluster_watts(document, cluster, hwdb, slower=end).total_w * end / drawn.total_w
            return math.exp(math.hypot(math.log(changed), math.log(drawn.spread)))

        mwh_low, mwh_high = mwh / apart(low), min(mwh * apart(high), drawn.most_w * high * site_mwh)
    million = tokens / 1e6

    def scaled(value: float | None, factor: float) -> float | None:
        return None if value is None else value * factor

    return RunDocument(
        tokens=tokens,
        goodput=good,
        days=days,
        days_low=days * low,
        days_high=days * high,
        finish_within_days=within_days,
        in_time=None if within_days is None else days <= within_days * (1 + 1e-9),
        usd=usd,
        usd_low=usd_low,
        usd_high=usd_high,
        usd_per_hour=usd_per_hour,
        usd_per_million_tokens=scaled(usd, 1 / million),
        usd_per_million_tokens_low=scaled(usd_low, 1 / million),
        usd_per_million_tokens_high=scaled(usd_high, 1 / million),
        mwh=mwh,
        mwh_low=mwh_low,
        mwh_high=mwh_high,
        kw=drawn.total_w / 1000 if drawn else None,
        co2_t=scaled(mwh, power.carbon / 1e3) if power.carbon else None,
        basis=basis,
    )


def _nodes_used(document: PlanDocument, cluster: Cluster) -> list[int]:
    """The node of every rank that the plan uses."""
    first = np.asarray(cluster.first_rank)
    return [int(node) for node in np.searchsorted(first, np.asarray(ranks_of(document)), side="right") - 1]


def ranks_of(document: PlanDocument) -> list[int]:
    """All ranks that a plan uses."""
    return [
        rank
        for pipeline in document.pipelines
        for stage in pipeline.stages
        for part in stage.parts
        for rank in part.ranks
    ]


def _goodput(document: PlanDocument, cluster: Cluster) -> tuple[float, str]:
    """(useful share of the time under node failures, at Daly's interval; source of the failure rate)."""
    mtbf_hours, failing = usual_mtbf_hours()
    nodes = len(set(_nodes_used(document, cluster)))
    mtbf_s, block_s = mtbf_hours * HOUR_S / max(nodes, 1), checkpoint_s(document, nodes)
    interval = daly_interval_s(mtbf_s, block_s)
    period = interval + block_s if interval > 0 else 0.0
    return useful_share(mtbf_s, period, block_s, 0.0, restart_s(document, nodes)), failing


def run_days(document: PlanDocument, cluster: Cluster, tokens: float) -> float:
    """Days in which a plan trains `tokens`, including failures; infinite for infinite tokens."""
    if math.isinf(tokens):
        return math.inf
    return tokens / (document.tokens_per_s * _goodput(document, cluster)[0]) / DAY_S


def rents_of(cluster: Cluster, hwdb: Hwdb) -> Callable[[float], tuple[float | None, list[str]]]:
    """A function of the days of a run: (USD per hour of all nodes or None, the rents taken).

    Nodes with a price of their own in the cluster file are not reserved.
    """
    known, rents, groups = node_prices(hwdb), gpu_rents(hwdb), []
    for group in cluster.groups:
        node = group.node
        figures = known.get(node.name, {})
        rent, reserved = figures.get("rent_usd_per_hour"), figures.get("reserved_usd_per_hour")
        if node.usd_per_hour and (rent is None or rent.value != node.usd_per_hour):
            rent, reserved = Figure(node.usd_per_hour, "cluster file or its row"), None
        if rent is None and reserved is None:
            rent = kind_rent(rents, node)
        least, most = (figures.get(name) for name in TERM)
        groups.append((group, rent, reserved, Rents.of(rent, reserved, least, most)))

    def rent_for(days: float) -> tuple[float | None, list[str]]:
        total, said = 0.0, []
        for group, rent, reserved, taken in groups:
            way, figure, more = "rent", rent, ""
            if taken.is_reserved(days):
                way, figure, more = "reserved", reserved, taken.beside_the_price(days)
            if figure is None:
                return None, [f"no dollars: no dated rent of {group.node.gpu.name} is known"]
            total += float(taken.usd_per_hour(days)) * group.count
            said.append(f"{way} of {group.node.name or group.node.gpu.name}: ${figure} an hour{more}")
        return total, list(dict.fromkeys(said))

    return rent_for


@dataclass(frozen=True, slots=True)
class WantedRun:
    """Tokens to train, and the days to finish within; None: not asked."""

    tokens: float
    within_days: float | None = None


def wanted_run(tokens: float | str | None, finish_within: float | str | None = None) -> WantedRun | None:
    """The run that is asked for: amounts as `300B`, times in days or as `14d`; None without tokens.

    Raises BadInputError for other amounts and times, and for a time without tokens.
    """
    if tokens is None:
        if finish_within is not None:
            raise BadInputError("`finish_within=` needs `tokens=`, e.g. 300B")
        return None
    amount = amount_of(str(tokens))
    if not (math.isfinite(amount) and amount > 0):
        raise BadInputError(f"`tokens=` {tokens}: give a finite number above zero, e.g. 300B")
    return WantedRun(amount, None if finish_within is None else days_of(finish_within))


def with_run(result: Result, hwdb: Hwdb, wanted: WantedRun | None, power: PowerTerms | None = None) -> Result:
    """The result with days, dollars and energy of the wanted run; unchanged if none is wanted."""
    if wanted is None:
        return result
    cluster = result.forecast.plan.cluster
    run = training_run(result.document, cluster, hwdb, wanted.tokens, wanted.within_days, power or UNCAPPED)
    return replace(result, document=result.document.with_fields(run=run))
