"""The HTML report of a replay: policies compared, how their time was spent, and what each did when."""

from collections.abc import Callable, Iterable, Mapping

from tangram_sim.availability import Availability
from tangram_sim.reliability.spot.engine import Outcome
from tangram_sim.reports import charts
from tangram_sim.reports.columns import ViewColumn, share
from tangram_sim.reports.ledger import Ledger
from tangram_sim.reports.page import caption, chart, figure_of, page, section, view
from tangram_sim.studies.replaying import ReplayDocument, SpotPolicyDocument
from tangram_sim.units import HOUR_S

NamedPolicy = tuple[str, SpotPolicyDocument]


def replay_report(document: ReplayDocument, found: Mapping[str, Outcome], history: Availability) -> str:
    """One offline HTML page: policies, how their time was spent, timelines and node counts."""
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
        _policies(document, played),
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


def policy_columns(document: ReplayDocument, accounts: Iterable[str] = ()) -> list[ViewColumn]:
    """What a terminal and a page show of (name, policy): work done, what of the bound, time by account."""
    policies = document.policies.values()
    unit = "samples" if all(policy.tokens is None for policy in policies) else "tokens"
    priced = any(policy.usd_per_million is not None for policy in policies)

    def spent(account: str) -> Callable[[NamedPolicy], float]:
        return lambda row: row[1].accounts[account] / document.duration_s

    return [
        ViewColumn("policy", "0"),
        ViewColumn(unit, lambda row: _amount(document, row[0]), "{:,.0f}", "played"),
        ViewColumn("of bound", "1.of_upper_bound", share(1), "played"),
        *([ViewColumn(f"$/M {unit}", "1.usd_per_million", "{:,.4g}", "played")] if priced else []),
        *(ViewColumn(name.replace("_", " "), spent(name), share(1), "played") for name in accounts),
    ]


def _policies(document: ReplayDocument, source: str) -> str:
    columns = [
        *policy_columns(document),
        ViewColumn("useful", "1.useful_share", share(1), "played"),
        ViewColumn("changes", "1.changes", "{}", "played"),
    ]
    left = "; ".join(f"{name}: {reason}" for name, reason in document.left_out.items())
    rows = view("policies", columns, [*document.policies.items()], {"played": source}, 0)
    return section("Policies", rows, *([caption(f"Left out: {left}.")] if left else []))
