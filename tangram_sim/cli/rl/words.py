"""How answers about post-training are shown in a terminal."""

from typing import TYPE_CHECKING

from tangram_sim.cli.console import print_line, print_table
from tangram_sim.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from tangram_sim.studies.rl_documents import (
        RlCompareDocument,
        RlPlanDocument,
        RlRolloutDocument,
        RlSimulateDocument,
        RlWhatIfDocument,
    )

_SHOWN = 12  # ratios


def _money(usd: float | None) -> str:
    return "" if usd is None else f"${usd:,.2f}"


def _gpus(counts: dict[str, int]) -> str:
    return " + ".join(f"{count} {kind}" for kind, count in counts.items())


def _engines(replicas: "list[RlRolloutDocument]") -> str:
    return ", ".join(f"{replica.count} of tp {replica.tp} on {replica.gpu}" for replica in replicas)


def _print_phases(found: "RlPlanDocument | RlSimulateDocument") -> None:
    """Print the phases of a step: how long each takes, and how long the step waits for it alone."""
    phases = [
        (name.replace("_", " "), show_seconds(seconds), show_seconds(found.exposed_s.get(name, 0.0)))
        for name, seconds in found.phases_s.items()
        if seconds > 0
    ]
    print_table(("phase", "seconds", "a step waits"), phases, right=(1, 2))


def show_plan(found: "RlPlanDocument") -> None:
    """Print a plan: the step first, then who does what, where the time goes, and what else was looked at."""
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
    rows = [
        (
            pool.role,
            f"{pool.gpus}",
            _gpus(pool.nodes),
            engines if pool.role == "rollout" else degrees or "1 GPU",
            show_seconds(pool.busy_s),
            f"{pool.idle_share * 100:.0f} %",
            f"{show_bytes(pool.memory_bytes)} of {show_bytes(pool.memory_capacity_bytes)}",
        )
        for pool in found.pools
    ]
    print_table(("pool", "GPUs", "nodes or GPUs", "layout", "busy", "idle", "memory"), rows, right=(1, 4, 5))
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
        table = [
            (
                kind.gpu,
                f"{kind.gpus}",
                f"{kind.trains_per_s:.3g}",
                f"{kind.generates_per_s:.3g}",
                f"{kind.ratio:.2f}",
            )
            for kind in sorted(found.kinds, key=lambda kind: -kind.ratio)
        ]
        columns = ("kind, best at rollout first", "GPUs", "trains/s a GPU", "generates/s a GPU", "ratio")
        print_table(columns, table, right=(1, 2, 3, 4))
    if len(found.curve) > 1:
        print_line()
        step = max(len(found.curve) // _SHOWN, 1)
        points = [
            (f"{rl_point.training_gpus}", f"{rl_point.rollout_gpus}", show_seconds(rl_point.step_s))
            for rl_point in found.curve[::step]
        ]
        print_table(("GPUs that train", "that generate", "step"), points, right=(0, 1, 2))
    if found.longer_responses:
        print_line()
        lengths = [(f"{tokens} tokens", show_seconds(s)) for tokens, s in found.longer_responses.items()]
        print_table(("this plan at a mean response of", "step"), lengths, right=(1,))
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
    rows = [
        (
            rule.rule,
            "no plan fits" if rule.step_s is None else show_seconds(rule.step_s),
            "" if rule.slower_by is None else f"+{rule.slower_by * 100:.0f} %",
            _gpus(rule.training),
            _gpus(rule.rollout_gpus),
            f"{rule.placement} {rule.mode}".strip(),
            rule.claim,
        )
        for rule in found.rules
    ]
    columns = ("rule", "step", "slower", "train", "generate", "how", "its authors report (reference)")
    print_table(columns, rows, right=(1, 2))


def show_what_if(found: "RlWhatIfDocument") -> None:
    """Print additions, cheapest trained tokens first."""
    now = found.usd_per_million_trained_tokens
    price = f", {_money(now)} a million trained tokens" if now is not None else ""
    step = "no placement fits" if found.step_s is None else f"step {show_seconds(found.step_s)}"
    print_line(f"without: {step}{price}")
    print_line()
    rows = [
        (
            offer.added,
            show_seconds(offer.step_s),
            "" if offer.faster_by is None else f"{offer.faster_by * 100:.0f} %",
            _money(offer.usd_per_million_trained_tokens),
            "" if offer.pays is None else "yes" if offer.pays else "no",
            _gpus(offer.trains),
            _gpus(offer.generates),
        )
        for offer in found.offers
    ]
    columns = ("added", "step", "shorter by", "USD a million tokens", "pays", "train", "generate")
    print_table(columns, rows, right=(1, 2, 3))
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
