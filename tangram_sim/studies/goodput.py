"""Goodput of a plan: speed left after failures, checkpoints and recovery; worth of each constant."""

import math
from dataclasses import replace
from functools import partial
from statistics import NormalDist, fmean

from tangram_sim.errors import InfeasibleError
from tangram_sim.reliability import periods
from tangram_sim.reliability.goodput import (
    Regime,
    Struck,
    accounts_of,
    empty_accounts,
    regime_of,
    worth_of,
)
from tangram_sim.reliability.sampling import sample_share
from tangram_sim.studies.goodput_documents import (
    GoodputDocument,
    SparesDocument,
    WorthDocument,
)
from tangram_sim.studies.goodput_settings import FailureFreeRate, GoodputSetting
from tangram_sim.units import DAY_S, show_seconds

_INTERVAL = NormalDist().inv_cdf(0.95)  # 90 % between its negative and itself
_ALL = 1 - 1e-9  # of the speed
_NO_PROGRESS = 1e-6  # a useful share below this is none


def goodput_document(
    setting: GoodputSetting,
    throughput: FailureFreeRate,
    *,
    policy: str = "restart",
    window_days: float = 30.0,
    quantile: float = 0.99,
    sample: int = 0,
    seed: int = 0,
) -> GoodputDocument:
    """The answer of `tangram goodput`: periods, useful share, accounts, worth of constants, spares. Raises
    InfeasibleError where a failure leaves no checkpoint to restore from."""
    regime = regime_of(setting.struck, setting.checkpointing)
    free = _free(setting)
    exact = regime if free is None else free
    down, recovery = _means(regime)
    named = _periods(regime, exact, down, recovery)
    shares = {name: _share_at(regime, period) for name, period in named.items()}
    first = {
        name: None if period is None else _first_order(regime, period, down, recovery)
        for name, period in named.items()
    }
    notes = _notes(setting, regime)
    if any(period is not None and period < _saved_s(regime) for period in named.values()):
        notes.append(
            f"a checkpoint is saved after {_saved_s(regime):.4g} s, and no period is shorter: shares of "
            "shorter ones are those of this one"
        )
    if policy == "shrink":
        notes.append("shares at the periods are those of policy restart")
        if any(failure_impact.takes in ("leaf", "all") for failure_impact in regime.losing):
            notes.append("policy shrink takes a failure of a whole leaf as that of one of its nodes")
    window_s = window_days * DAY_S
    accounts, goodput, share = accounts_of(regime), regime.share(), Regime.share
    if policy == "shrink":
        accounts, goodput = _shrink(setting, regime)
        share = partial(_shrunk_share, setting)
    sampled = sample_share(regime, sample, window_s, seed) if sample and policy == "restart" else None
    if sample and policy != "restart":
        notes.append("`sample=` plays the policy restart only; the interval is the analytic one")
    low, high = (sampled.low, sampled.high) if sampled else _interval(regime, goodput, window_s)
    tokens = throughput.tokens_per_s * goodput if throughput.tokens_per_s else None
    return GoodputDocument(
        mtbf_s=regime.mtbf_s if math.isfinite(regime.mtbf_s) else 0.0,
        failures_source=setting.source,
        per_1000_node_days=setting.per_1000_node_days,
        periods_s=named,
        useful_share=shares,
        first_order_share=first,
        best_period_s=exact.base_s if math.isfinite(exact.base_s) else 0.0,
        policy=policy,
        goodput=goodput,
        tiers=[
            replace(tier, period_s=period if math.isfinite(period) else 0.0)
            for tier, period in zip(regime.tiers, regime.periods_s, strict=True)
        ],
        accounts=accounts,
        tokens_per_s=tokens,
        interval=_with_speed(throughput, goodput, low, high),
        window_days=window_days,
        worth=[
            WorthDocument.from_objects(
                w, tokens_per_day=w.gain * throughput.tokens_per_s * DAY_S if tokens else None
            )
            for w in worth_of(regime, share)
        ],
        spares=_spares(setting, quantile),
        sample=sampled,
        notes=notes,
    )


def _free(setting: GoodputSetting) -> Regime | None:
    """The regime with optimal periods for all checkpoint tiers; None if the user states no period."""
    if all(math.isnan(tier.period_s) for tier in setting.checkpointing.tiers):
        return None
    tiers = tuple(replace(tier, period_s=math.nan) for tier in setting.checkpointing.tiers)
    return regime_of(setting.struck, replace(setting.checkpointing, tiers=tiers))


def _means(regime: Regime) -> tuple[float, float]:
    """(mean downtime D, mean recovery R) in seconds, over the failure classes that lose work."""
    if not regime.losing:
        return 0.0, 0.0
    found = regime.recoveries()
    return (
        sum(r.share * r.downtime_s for r in found),
        sum(r.share * r.recovery_s for r in found),
    )


def _periods(regime: Regime, exact: Regime, down: float, recovery: float) -> dict[str, float | None]:
    if not regime.losing or not regime.tiers:
        return dict.fromkeys(("young", "daly", "refined", "exact"))
    mtbf_s = 1.0 / sum(failure.rate_per_s for failure in regime.losing)
    block = exact.block_s
    refined = periods.refined_s(mtbf_s, block, down, recovery)
    return {
        "young": periods.young_s(mtbf_s, block),
        "daly": periods.daly_s(mtbf_s, block, down, recovery),
        "refined": None if math.isnan(refined) else refined,
        "exact": exact.base_s,
    }


def _share_at(regime: Regime, period: float | None) -> float | None:
    """The useful share at this checkpoint period, at least the time of saving a checkpoint."""
    if period is None:
        return None
    if not period:
        return regime.share()
    return replace(regime, work_s=max(0.0, max(period, _saved_s(regime)) - regime.block_s)).share()


def _saved_s(regime: Regime) -> float:
    """Shortest possible checkpoint period in seconds: a checkpoint is saved before the next one begins."""
    return regime.tiers[0].save_s if regime.tiers else 0.0


def _first_order(regime: Regime, period: float, down: float, recovery: float) -> float:
    mtbf_s = 1.0 / sum(failure.rate_per_s for failure in regime.losing)
    if period <= 0:
        return regime.share()
    period = max(period, _saved_s(regime))
    return periods.first_order_share(mtbf_s, period, min(regime.block_s, period), down, recovery)


def _shrink(setting: GoodputSetting, regime: Regime) -> tuple[dict[str, float], float]:
    """(shares of time by account, goodput) of elastic data parallelism, to first order.

    Raises InfeasibleError for fewer than two replicas, or if losing one node breaks every replica.
    """
    if setting.replicas < 2:
        raise InfeasibleError(
            "policy shrink goes on without the broken replica; this plan holds everything once, "
            "give a plan with two replicas or more, or `policy=restart`"
        )
    stopping = sum(share > _ALL for share in setting.lost_with_node)
    if stopping and any(
        failure_impact.takes != "process" and failure_impact.rate_per_s > 0
        for failure_impact in regime.losing
    ):
        raise InfeasibleError(
            f"policy shrink goes on without the broken replicas; {stopping} of the plan's "
            f"{len(setting.lost_with_node)} nodes hold a part of every replica, and losing one leaves none "
            "whole; give a plan whose replicas have nodes of their own, or `policy=restart`"
        )
    found = empty_accounts()
    for failure in regime.losing:
        tier = regime.tiers[regime.tier_of(failure)]
        found["detection"] += failure.rate_per_s * failure.detect_s
        found["restart"] += failure.rate_per_s * failure.start_s
        away = failure.wait_s + tier.load_s + (setting.repair_s if not failure.wait_s else 0.0)
        found["degraded"] += failure.rate_per_s * away * _broken_share(setting, failure)
    found["checkpoint"] = regime.block_s / regime.base_s if math.isfinite(regime.base_s) else 0.0
    spent = sum(found.values())
    if spent > 1.0:
        return {name: part / spent for name, part in found.items()}, 0.0
    return found | {"useful": 1.0 - spent}, 1.0 - spent


def _broken_share(setting: GoodputSetting, failure: Struck) -> float:
    """Mean share of the speed lost after a failure: a process breaks one replica, a node all that have a part
    on it, the loss of all nodes everything."""
    if failure.takes == "all":
        return 1.0
    if failure.takes == "process" or not setting.lost_with_node:
        return 1.0 / setting.replicas
    return fmean(setting.lost_with_node)


def _shrunk_share(setting: GoodputSetting, regime: Regime) -> float:
    return _shrink(setting, regime)[1]


def _interval(regime: Regime, goodput: float, window_s: float) -> tuple[float, float]:
    """90 % interval of the useful share over `window_s`; variances of independent failures add up."""
    if goodput < _NO_PROGRESS:
        return 0.0, goodput
    variance = 0.0
    for failure in regime.losing:
        recovery = next(r for f, r in zip(regime.losing, regime.recoveries(), strict=True) if f is failure)
        base = regime.base_s if math.isfinite(regime.base_s) else 0.0
        mean = recovery.downtime_s + recovery.recovery_s + base / 2
        variance += failure.rate_per_s * (mean**2 + base**2 / 12)
    spread = _INTERVAL * math.sqrt(variance / window_s)
    return max(0.0, goodput - spread), min(1.0, goodput + spread)


def _with_speed(throughput: FailureFreeRate, goodput: float, low: float, high: float) -> list[float]:
    """90 % interval of the useful share or, at a known speed, of tokens/s with that speed's uncertainty."""
    if not throughput.tokens_per_s:
        return [low, high]
    rate = throughput.tokens_per_s

    def end(share: float, speed: float) -> float:
        if goodput <= 0 or share <= 0 or speed <= 0:
            return rate * share
        return math.hypot(math.log(share / goodput), math.log(speed / rate))

    if goodput <= 0:
        return [0.0, rate * high]
    below = rate * goodput * math.exp(-end(low, throughput.low)) if low > 0 else 0.0
    return [below, rate * goodput * math.exp(end(high, throughput.high))]


def _spares(setting: GoodputSetting, quantile: float) -> SparesDocument | None:
    if not (setting.nodes and setting.repair_s and setting.node_failures_per_s):
        return None
    count = periods.spares(
        setting.nodes, setting.node_failures_per_s / setting.nodes, setting.repair_s, quantile
    )
    return SparesDocument(nodes=count, quantile=quantile, repair_s=setting.repair_s)


def _notes(setting: GoodputSetting, regime: Regime) -> list[str]:
    notes = []
    if setting.per_1000_node_days is not None:
        rate = float(f"{setting.per_1000_node_days:.3g}")
        notes.append(
            f"failures: {rate:,g} per 1,000 node-days ({setting.source}); studies "
            "differ by a factor of three, fit the rate to your own incidents"
        )
    if not regime.losing:
        notes.append("nothing fails: no checkpoint is needed, stated ones are taken")
    elif regime.share() < _NO_PROGRESS:
        notes.append(_what_helps(regime))
    elif not any(
        failure_impact.detect_s or failure_impact.wait_s or failure_impact.start_s
        for failure_impact in regime.losing
    ):
        notes.append(
            "failures are taken to be noticed, and the job to be restarted, in no time, for nothing else was "
            "given: this is the most that can be left; state `downtime_s=` and `recovery_s=`, or `recovery` "
            "in a file of tiers"
        )
    if setting.checkpointing.recovery.notice_s:
        notes.append(
            f"the notice of {setting.checkpointing.recovery.notice_s:g} s is not used here: failures come "
            "unannounced; a replay of a spot trace uses it"
        )
    left_out = [t.name for t in setting.checkpointing.tiers if t.name not in {x.name for x in regime.tiers}]
    if left_out and regime.losing:
        notes.append(f"better off without the tier {', '.join(left_out)}: give it a period to keep it")
    return notes


def _what_helps(regime: Regime) -> str:
    mtbf_s = regime.mtbf_s
    worst = max((r.recovery_s for r in regime.recoveries()), default=0.0)
    if regime.work_s <= 0:
        return (
            f"no progress: every period is over in the {show_seconds(regime.block_s)} that its checkpoint "
            "blocks, and no work is left in it; longer periods, or checkpoints that block less, would help"
        )
    if regime.block_s > mtbf_s:
        return (
            f"no progress: a failure every {show_seconds(mtbf_s)}, and a checkpoint takes "
            f"{show_seconds(regime.block_s)}: none ends before the next failure; checkpoints well below "
            f"{show_seconds(mtbf_s / 10)} (asynchronous, in memory), fewer nodes or `policy=shrink` would "
            "help"
        )
    if regime.base_s > 5 * mtbf_s:
        return (
            f"no progress: a failure every {show_seconds(mtbf_s)}, and a checkpoint every "
            f"{show_seconds(regime.base_s)} only: work is lost before it is saved; shorter periods, fewer "
            "nodes or `policy=shrink` would help"
        )
    return (
        f"no progress: a failure comes every {show_seconds(mtbf_s)} and recovery takes "
        f"{show_seconds(worst)}, so it is struck again and again; faster restarts, or going on without the "
        "broken node, would help"
    )
