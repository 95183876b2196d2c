"""`tangram serve replan`: a service that follows prices and availability over time."""

from typing import TYPE_CHECKING

from tangram_sim.cli.asked import asked
from tangram_sim.cli.console import print_line, print_table
from tangram_sim.questions.serve_replan import ServeReplanQuestion

if TYPE_CHECKING:
    from tangram_sim.studies.serving_replan import ServeReplanDocument


def _show(found: "ServeReplanDocument") -> None:
    """Print policies beside hindsight, then the periods of the best one."""
    print_line(
        f"{found.periods} periods, {found.requests:,.0f} requests; no policy below {found.bound:.6g} USD"
    )
    print_line()
    rows = [
        (
            policy.name,
            f"{policy.usd:.5g}",
            f"{policy.switching_usd:.3g}",
            str(policy.starts),
            f"{policy.lost_requests:,.0f}",
            f"{policy.over_hindsight * 100:+.1f} %",
        )
        for policy in found.policies
    ]
    heads = ("policy", "USD", "of it switches", "starts", "requests lost", "over the best")
    print_table(heads, rows, right=range(1, 6))
    shown = found.policies[1]
    print_line(f"{shown.name}:")
    lines = [
        (
            f"{period.begin_s:,.0f} s",
            ", ".join(f"{count} x {name}" for name, count in period.replicas.items()) or "nothing",
            f"{period.served_share * 100:.1f} %",
        )
        for period in shown.periods[:30]
    ]
    print_table(("from", "replicas", "served"), lines, right=(0, 2))
    if len(shown.periods) > len(lines):
        print_line(f"and {len(shown.periods) - len(lines)} more periods; --json has all")


command = asked(ServeReplanQuestion, _show)
