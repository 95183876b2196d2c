"""The HTML report of a replay: policies compared, how their time was spent, and when each did what."""

from collections.abc import Mapping

from tangram_sim.availability import Availability
from tangram_sim.reliability.spot.engine import Outcome
from tangram_sim.reports import charts
from tangram_sim.reports.ledger import Cell, Ledger
from tangram_sim.reports.page import caption, chart, figure_of, page, section, table
from tangram_sim.studies.replaying import ReplayDocument
from tangram_sim.units import HOUR_S


def replay_report(document: ReplayDocument, found: Mapping[str, Outcome], history: Availability) -> str:
    """One HTML page, usable offline: policies, how their time was spent, timelines and node counts."""
    ledger = Ledger()
    given = ledger.cite("given", f"the trace {document.trace}")
    played = ledger.cite("computed", f"replays of {document.trace} under each policy (docs/models/replay.md)")
    unit = "samples" if all(policy.tokens is None for policy in document.policies.values()) else "tokens"
    job = (
        f"{figure_of(f'{document.duration_s / HOUR_S:.2f} h', [given])} with "
        f"{figure_of(str(document.losses), [given])} losses and "
        f"{figure_of(f'{document.mean_nodes:.1f}', [given])} nodes in the mean"
    )
    answer = (
        f"Best is {document.best or 'none'}: "
        f"{figure_of(f'{_amount(document, document.best):,.0f}', [played])} {unit}; changes that cost "
        f"nothing would make {figure_of(f'{document.upper_bound:,.0f}', [played])} of them."
    )
    accounts = charts.account_bars({name: outcome.accounts for name, outcome in found.items()})
    sections = [
        _policies(document, unit, played),
        section(
            "Where the time went",
            chart("accounts", accounts, [played]),
            caption("Shares of wall time by account; they sum to one."),
        ),
        section(
            "What each policy did when",
            chart("nodes", charts.node_counts(history.counts(), history.until_s), [given]),
            chart("policies-timeline", charts.policy_timeline(found, history.until_s), [played]),
            caption("Nodes that there are, and below them every policy: running, or stalled for what."),
        ),
    ]
    return page(f"Policies on {document.trace}", job, answer, sections, ledger)


def _amount(document: ReplayDocument, name: str) -> float:
    item = document.policies.get(name)
    return 0.0 if item is None else item.samples if item.tokens is None else item.tokens


def _policies(document: ReplayDocument, unit: str, source: str) -> str:
    heads = ["policy", unit, "of the bound", "useful", "changes"]
    priced = any(policy.usd_per_million is not None for policy in document.policies.values())
    heads += [f"USD per million {unit}"] if priced else []
    rows = []
    for name, policy in document.policies.items():
        amount = _amount(document, name)
        cells = [
            Cell(name),
            Cell(f"{amount:,.0f}", [source], amount),
            Cell(f"{policy.of_upper_bound * 100:.1f} %", [source], policy.of_upper_bound),
            Cell(f"{policy.useful_share * 100:.1f} %", [source], policy.useful_share),
            Cell(str(policy.changes), [source], float(policy.changes)),
        ]
        if priced:
            cost = policy.usd_per_million
            cells.append(Cell("-") if cost is None else Cell(f"{cost:,.4g}", [source], cost))
        rows.append(cells)
    left = "; ".join(f"{name}: {reason}" for name, reason in document.left_out.items())
    words = [f"Left out: {left}."] if left else []
    return section("Policies", table("policies", heads, rows, 0), *[caption(word) for word in words])
