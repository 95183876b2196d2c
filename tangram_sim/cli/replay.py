"""`tangram train replay`: compares policies for nodes that leave and return, on one history."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tangram_sim.cli.console import print_columns, print_line
from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import AnswerOutputs
from tangram_sim.fields import OUTPUT, option
from tangram_sim.questions.replay import Replayed, ReplayTraceQuestion
from tangram_sim.units import HOUR_S

if TYPE_CHECKING:
    from tangram_sim.studies.replaying import ReplayDocument


@dataclass(frozen=True, slots=True)
class ReplayOutputs(AnswerOutputs):
    """Where a replay is written."""

    timeline: Path | None = option(None, "Write what each policy did when to this CSV file.", group=OUTPUT)


@derived
def command(question: ReplayTraceQuestion, outputs: ReplayOutputs) -> None:
    """Write the requested files, and print the answer."""
    from tangram_sim.cli.progress import SlowProgress
    from tangram_sim.reports.replays import replay_report

    outputs.require_writable(timeline=outputs.timeline)
    with SlowProgress("planning fleets" if question.cluster else "replaying"):
        found = question.answer()
    if outputs.timeline is not None:
        _write_timeline(outputs.timeline, found)
    outputs.show(
        found,
        lambda each: show(each.document),
        lambda: replay_report(found.document, dict(found.outcomes), found.history),
    )


def _write_timeline(path: Path, found: Replayed) -> None:
    from tangram_sim.datafiles import write_whole

    lines = ["policy,start_s,stop_s,account,layout"]
    for name, outcome in found.outcomes.items():
        lines += [f"{name},{s.start_s:.3f},{s.stop_s:.3f},{s.account},{s.label}" for s in outcome.segments]
    write_whole(path, "\n".join(lines) + "\n")


def show(document: "ReplayDocument") -> None:
    """Print policies in a table, best first."""
    from tangram_sim.reports.replays import policy_columns

    tokens = any(policy.tokens is not None for policy in document.policies.values())
    unit = "tokens" if tokens else "samples"
    print_line(
        f"{document.trace}: {document.duration_s / HOUR_S:.2f} h   {document.events} events   "
        f"{document.losses} losses   {document.mean_nodes:.1f} nodes in the mean"
    )
    accounts = (
        [
            name
            for name in next(iter(document.policies.values())).accounts
            if any(policy.accounts[name] > 0 for policy in document.policies.values())
        ]
        if document.policies
        else []
    )
    print_columns(policy_columns(document, accounts), [*document.policies.items()])
    bound, short = document.upper_bound, document.upper_bound_short
    if short is None:
        print_line(f"no policy can beat {bound:,.0f} {unit}: changes that cost nothing")
    else:
        print_line(
            f"no policy can beat {short:,.0f} {unit}: changes that cost nothing, plans short of nodes "
            f"included; {bound:,.0f} with whole layouts"
        )
    for name, reason in document.left_out.items():
        print_line(f"{name} left out: {reason}")
    for note in document.notes:
        print_line(note)
