"""`tangram goodput`: how much of a plan's throughput remains after failures and checkpoints."""

from typing import TYPE_CHECKING

from tangram_sim.cli.asked import asked
from tangram_sim.cli.console import print_line, print_table
from tangram_sim.questions.goodput import GoodputQuestion

if TYPE_CHECKING:
    from tangram_sim.studies.goodput_documents import GoodputDocument


def _show(found: "GoodputDocument") -> None:
    """Print the answer as sentences and tables."""
    from tangram_sim.units import show_seconds, show_span

    low, high = found.interval
    what = "useful share" if found.tokens_per_s is None else "tokens/s"
    rate = "" if found.tokens_per_s is None else f"   {found.tokens_per_s:,.0f} tokens/s"
    ends = f"{low:.4f} to {high:.4f}" if found.tokens_per_s is None else f"{low:,.0f} to {high:,.0f}"
    print_line(
        f"goodput {found.goodput:.4f}{rate}   90 % of windows of {found.window_days:g} days: {what} {ends}   "
        f"{f'one failure in {show_span(found.mtbf_s)}' if found.mtbf_s else 'nothing fails'}"
    )
    rows = [
        (
            name,
            show_seconds(period),
            f"{found.useful_share[name]:.4f}",
            f"{found.first_order_share[name]:.4f}",
        )
        for name, period in found.periods_s.items()
        if period is not None
    ]
    if rows:
        print_table(("period", "seconds", "useful share", "first order"), rows, right=(1, 2, 3))
    if len(found.tiers) > 1:
        print_table(
            ("tier", "period", "blocks", "until saved", "load", "survives"),
            [
                (
                    tier.name,
                    show_seconds(tier.period_s),
                    *(show_seconds(seconds) for seconds in (tier.block_s, tier.save_s, tier.load_s)),
                    tier.survives,
                )
                for tier in found.tiers
            ],
            right=(1, 2, 3, 4),
        )
    print_table(
        ("account", "share of time"),
        [
            (name.replace("_", " "), f"{part * 100:.2f} %")
            for name, part in found.accounts.items()
            if part > 0 or name == "useful"
        ],
        right=(1,),
    )
    if found.worth:
        tokens = found.tokens_per_s is not None
        print_table(
            ("one second less of", "now", "share gained", *(("tokens a day",) if tokens else ())),
            [
                (
                    worth.constant,
                    show_seconds(worth.seconds),
                    f"{worth.gain:.2e}",
                    *((f"{worth.tokens_per_day or 0.0:,.0f}",) if tokens else ()),
                )
                for worth in found.worth
            ],
            right=(1, 2, 3),
        )
    if found.spares:
        print_line(
            f"{found.spares.nodes} spare nodes are enough with probability {found.spares.quantile:g} "
            f"(repair {show_span(found.spares.repair_s)})"
        )
    if found.sample:
        print_line(
            f"{found.sample.failures:,} failures played: useful share {found.sample.useful_share:.4f} +- "
            f"{found.sample.standard_error:.4f}"
        )
    for note in found.notes:
        print_line(note)


command = asked(GoodputQuestion, _show)
