"""`tangram serve replan`: a service that follows prices and availability over time."""

from typing import TYPE_CHECKING

from tangram_sim.cli.asked import asked
from tangram_sim.cli.console import print_columns, print_line
from tangram_sim.questions.serve_replan import ServeReplanQuestion
from tangram_sim.reports.columns import ViewColumn, share

if TYPE_CHECKING:
    from tangram_sim.studies.serving_replan import ServeReplanDocument

_MOST_PERIODS = 30
_POLICIES = (
    ViewColumn("policy", "name"),
    ViewColumn("USD", "usd", "{:.5g}"),
    ViewColumn("of it switches", "switching_usd", "{:.3g}"),
    ViewColumn("starts", "starts", "{}"),
    ViewColumn("requests lost", "lost_requests", "{:,.0f}"),
    ViewColumn("over the best", "over_hindsight", share(1, signed=True)),
)
_PERIODS = (
    ViewColumn("from", "begin_s", "{:,.0f} s"),
    ViewColumn("replicas", lambda period: _running(period.replicas)),
    ViewColumn("served", "served_share", share(1)),
)


def _running(replicas: dict[str, int]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in replicas.items()) or "nothing"


def _show(found: "ServeReplanDocument") -> None:
    """Print policies compared with hindsight, then the periods of the best policy."""
    print_line(
        f"{found.periods} periods, {found.requests:,.0f} requests; no policy below {found.bound:.6g} USD"
    )
    print_line()
    print_columns(_POLICIES, found.policies)
    shown = found.policies[1]
    print_line(f"{shown.name}:")
    lines = shown.periods[:_MOST_PERIODS]
    print_columns(_PERIODS, lines)
    if len(shown.periods) > len(lines):
        print_line(f"and {len(shown.periods) - len(lines)} more periods; --json has all")


command = asked(ServeReplanQuestion, _show)
