"""How answers about post-training are shown in a terminal."""

from typing import TYPE_CHECKING

from tangram_sim.cli.console import print_columns, print_line
from tangram_sim.reports.columns import ViewColumn, counted, share
from tangram_sim.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from tangram_sim.post_training.plan import RolloutReplicas
    from tangram_sim.studies.rl_documents import (
        RlCompareDocument,
        RlPlanDocument,
        RlPoolDocument,
        RlSimulateDocument,
        RlWhatIfDocument,
    )

_SHOWN = 12  # ratios


def _money(usd: float | None) -> str:
    return "" if usd is None else f"${usd:,.2f}"


def _gpus(counts: dict[str, int]) -> str:
    return counted(counts, " + ")


def _engines(replicas: "list[RolloutReplicas]") -> str:
    return ", ".join(f"{replica.count} of tp {replica.tp} on {replica.gpu}" for replica in replicas)


def _memory(pool: "RlPoolDocument") -> str:
    return f"{show_bytes(pool.memory_bytes)} of {show_bytes(pool.memory_capacity_bytes)}"


_KINDS = (
    ViewColumn("kind, best at rollout first", "gpu"),
    ViewColumn("GPUs", "gpus", "{}"),
    ViewColumn("trains/s a GPU", "trains_per_s", "{:.3g}"),
    ViewColumn("generates/s a GPU", "generates_per_s", "{:.3g}"),
    ViewColumn("ratio", "ratio", "{:.2f}"),
)
_CURVE = (
    ViewColumn("GPUs that train", "training_gpus", "{}"),
    ViewColumn("that generate", "rollout_gpus", "{}"),
    ViewColumn("step", "step_s", show_seconds),
)
_LONGER = (
    ViewColumn("this plan at a mean response of", lambda row: f"{row[0]} tokens"),
    ViewColumn("step", "1", show_seconds),
)
_RULES = (
    ViewColumn("rule", "rule"),
    ViewColumn("step", "step_s", show_seconds, unknown="no plan fits"),
    ViewColumn("slower", "slower_by", share(signed=True), unknown=""),
    ViewColumn("train", lambda rule: _gpus(rule.training)),
    ViewColumn("generate", lambda rule: _gpus(rule.rollout_gpus)),
    ViewColumn("how", lambda rule: f"{rule.placement} {rule.mode}".strip()),
    ViewColumn("its authors report (reference)", "claim"),
)
_OFFERS = (
    ViewColumn("added", "added"),
    ViewColumn("step", "step_s", show_seconds),
    ViewColumn("shorter by", "faster_by", share(), unknown=""),
    ViewColumn("USD a million tokens", "usd_per_million_trained_tokens", _money, unknown=""),
    ViewColumn("pays", lambda offer: None if offer.pays is None else ("no", "yes")[offer.pays], unknown=""),
    ViewColumn("train", lambda offer: _gpus(offer.trains)),
    ViewColumn("generate", lambda offer: _gpus(offer.generates)),
)


def _print_phases(found: "RlPlanDocument | RlSimulateDocument") -> None:
    """Print the phases of a step: seconds of each, and seconds that the step waits for that phase alone."""
    columns = (
        ViewColumn("phase", lambda phase: phase[0].replace("_", " ")),
        ViewColumn("seconds", "1", show_seconds),
        ViewColumn("a step waits", lambda phase: found.exposed_s.get(phase[0], 0.0), show_seconds),
    )
    print_columns(columns, [phase for phase in found.phases_s.items() if phase[1] > 0])


def show_plan(found: "RlPlanDocument") -> None:
    """Print a plan: the step, the GPUs' roles, time by phase, and other placements evaluated."""
    made = found.decisions
    how = f"{made.placement}, {made.mode}" if made.placement != "colocated" else "colocated"
    cost = found.usd_per_million_trained_tokens
    price = f"   {_money(cost)} a million trained tokens" if cost is not None else ""
    print_line(
        f"step {show_seconds(found.step_s)} ({show_seconds(found.step_s_low)} to "
        f"{show_seconds(found.step_s_high)})   {how}   {found.trained_tokens_per_s:,.0f} trained "
        f"tokens/s{price}"
    )
    print_line()
    layout = made.layout
    degrees = "-".join(
        f"{name}{value}"
        for name, value in (("tp", layout.tp), ("pp", layout.pp), ("dp", layout.dp), ("ep", layout.ep))
        if value > 1
    )
    engines = _engines(made.rollout)
    columns = (
        ViewColumn("pool", "role"),
        ViewColumn("GPUs", "gpus", "{}"),
        ViewColumn("nodes or GPUs", lambda pool: _gpus(pool.nodes)),
        ViewColumn("layout", lambda pool: engines if pool.role == "rollout" else degrees or "1 GPU"),
        ViewColumn("busy", "busy_s", show_seconds),
        ViewColumn("idle", "idle_share", share()),
        ViewColumn("memory", _memory),
    )
    print_columns(columns, found.pools)
    if made.placement == "colocated":
        print_line(f"engines: {engines}")
    if made.lent:
        print_line(f"engines on training GPUs: {_engines(made.lent)}")
    if found.idle_gpus:
        print_line(f"idle: {_gpus(found.idle_gpus)}")
    print_line()
    _print_phases(found)
    print_line(
        f"long tail: {show_seconds(found.long_tail_s)} after nine of ten responses are complete; age of "
        f"sequences {found.ages['mean']:.1f} versions in the mean, {found.ages['most']:.0f} at most"
    )
    if found.lower_bound_s is not None and found.gap is not None:
        print_line(
            f"lower bound {show_seconds(found.lower_bound_s)} (optimality gap {found.gap * 100:.0f} %)"
        )
    if found.kinds:
        print_line()
        by_ratio = sorted(found.kinds, key=lambda kind: (kind.ratio is not None, -(kind.ratio or 0.0)))
        print_columns(_KINDS, by_ratio)
    if len(found.curve) > 1:
        print_line()
        step = max(len(found.curve) // _SHOWN, 1)
        print_columns(_CURVE, found.curve[::step])
    if found.longer_responses:
        print_line()
        print_columns(_LONGER, [*found.longer_responses.items()])
    print_line()
    for assumption in found.assumptions[:3]:
        print_line(assumption)
    if found.stopped:
        print_line("stopped by the time limit: the best plan so far")


def show_compare(found: "RlCompareDocument") -> None:
    """Print steps by rule, ours first."""
    print_line(
        f"best step {show_seconds(found.best_step_s)}   lower bound {show_seconds(found.lower_bound_s)}"
    )
    print_line()
    print_columns(_RULES, found.rules)


def show_what_if(found: "RlWhatIfDocument") -> None:
    """Print additions, cheapest trained tokens first."""
    now = found.usd_per_million_trained_tokens
    price = f", {_money(now)} a million trained tokens" if now is not None else ""
    step = "no placement fits" if found.step_s is None else f"step {show_seconds(found.step_s)}"
    print_line(f"without: {step}{price}")
    print_line()
    print_columns(_OFFERS, found.offers)
    for added, why in found.infeasible.items():
        print_line(f"{added}: {why}")
    if found.not_planned:
        print_line(f"not planned, the time limit was over: {', '.join(found.not_planned)}")
    if found.unpriced:
        print_line(f"no dated price: {', '.join(found.unpriced)}; give --price GPU=USD, an hour of one GPU")


def show_simulate(found: "RlSimulateDocument") -> None:
    """Print the spread of steps over drawn lengths."""
    step = found.step_s
    print_line(
        f"step {show_seconds(step['mean'])} +- {show_seconds(step['standard_error'])}, 90 % of steps "
        f"{show_seconds(step['low'])} to {show_seconds(step['high'])} ({found.seeds} draws of lengths)"
    )
    print_line()
    _print_phases(found)
    idle = ", ".join(f"{name} {share * 100:.0f} %" for name, share in found.idle.items())
    print_line(
        f"idle: {idle}; longest response {found.longest_response:,.0f} tokens; age of sequences "
        f"{found.ages['mean']:.1f} versions in the mean, {found.ages['most']:.0f} at most"
    )
