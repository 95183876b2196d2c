"""`tangram goodput`: how much of a plan's throughput remains after failures and checkpoints."""

from typing import TYPE_CHECKING

from tangram_sim.cli.asked import asked
from tangram_sim.cli.console import print_columns, print_line
from tangram_sim.questions.goodput import GoodputQuestion
from tangram_sim.reports.columns import ViewColumn, share
from tangram_sim.units import show_seconds, show_span

if TYPE_CHECKING:
    from tangram_sim.studies.goodput_documents import GoodputDocument

_PERIODS = (
    ViewColumn("period", "0"),
    ViewColumn("seconds", "1", show_seconds),
    ViewColumn("useful share", "2", "{:.4f}"),
    ViewColumn("first order", "3", "{:.4f}"),
)
_TIERS = (
    ViewColumn("tier", "name"),
    ViewColumn("period", "period_s", show_seconds),
    ViewColumn("blocks", "block_s", show_seconds),
    ViewColumn("until saved", "save_s", show_seconds),
    ViewColumn("load", "load_s", show_seconds),
    ViewColumn("survives", "survives"),
)
_ACCOUNTS = (
    ViewColumn("account", lambda row: row[0].replace("_", " ")),
    ViewColumn("share of time", "1", share(2)),
)
_WORTH = (
    ViewColumn("one second less of", "constant"),
    ViewColumn("now", "seconds", show_seconds),
    ViewColumn("share gained", "gain", "{:.2e}"),
    ViewColumn("tokens a day", "tokens_per_day", "{:,.0f}", unknown="0"),
)


def _show(found: "GoodputDocument") -> None:
    """Print the answer as sentences and tables."""
    low, high = found.interval
    what = "useful share" if found.tokens_per_s is None else "tokens/s"
    rate = "" if found.tokens_per_s is None else f"   {found.tokens_per_s:,.0f} tokens/s"
    ends = f"{low:.4f} to {high:.4f}" if found.tokens_per_s is None else f"{low:,.0f} to {high:,.0f}"
    print_line(
        f"goodput {found.goodput:.4f}{rate}   90 % of windows of {found.window_days:g} days: {what} {ends}   "
        f"{f'one failure in {show_span(found.mtbf_s)}' if found.mtbf_s else 'nothing fails'}"
    )
    periods = [
        (name, period, found.useful_share[name], found.first_order_share[name])
        for name, period in found.periods_s.items()
        if period is not None
    ]
    if periods:
        print_columns(_PERIODS, periods)
    if len(found.tiers) > 1:
        print_columns(_TIERS, found.tiers)
    accounts = [item for item in found.accounts.items() if item[1] > 0 or item[0] == "useful"]
    print_columns(_ACCOUNTS, accounts)
    if found.worth:
        print_columns(_WORTH if found.tokens_per_s is not None else _WORTH[:-1], found.worth)
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
