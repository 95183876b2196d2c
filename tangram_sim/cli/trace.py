"""`tangram trace generate | describe`: histories of nodes coming and going."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tangram_sim.cli.console import print_line, print_table
from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import FileOutput, Shown
from tangram_sim.errors import BadInputError
from tangram_sim.fields import about, described, option
from tangram_sim.units import HOUR_S

if TYPE_CHECKING:
    from tangram_sim.reliability.spot.generate import Description

app = typer.Typer(
    help="Histories of nodes coming and going: make one, or say what one is like.", no_args_is_help=True
)


@described
@dataclass(frozen=True, slots=True)
class TraceToMake:
    """A history of nodes to make from rates and a seed."""

    nodes: tuple[str, ...] = field(
        metadata=about("How many there are at first: 32, or KIND=32; may be repeated.", basic=True)
    )
    hours: float = option(12.0, "How long the history is.", above=0, most=100_000, basic=True)
    losses_per_node_hour: float | None = option(
        None, "Rate at which a node goes, e.g. 0.2 for spot.", least=0, example="0.1", basic=True
    )
    failures: str | None = option(None, "A preset or file of failure classes in place of a rate.", basic=True)
    return_s: float | None = option(
        None, "Mean seconds until another node comes; 0: never.", least=0, example="600", basic=True
    )
    burst: float = option(
        0.0, "Further nodes that go with a lost one, in the mean.", least=0, example="0.1", basic=True
    )
    leaf_nodes: int = option(
        0, "Nodes of a kind under one leaf, which --failures may take; 0: all of a kind.", least=0, basic=True
    )
    seed: int = option(0, "Equal seeds give equal traces.", least=0, basic=True)

    def __post_init__(self) -> None:
        if (self.losses_per_node_hour is None) == (self.failures is None):
            raise BadInputError("give one of `losses_per_node_hour=` and `failures=`")


@described
@dataclass(frozen=True, slots=True)
class TraceToDescribe:
    """A history of nodes in a file."""

    trace: Path = field(
        metadata=about("A trace file, as for `train replay`.", positional="TRACE", basic=True)
    )
    trace_name: str = option("", "Which of several in the file.", basic=True)


@app.command("generate")
@derived
def generate(asked: TraceToMake, outputs: FileOutput) -> None:
    """Make a trace from rates and a seed: losses as Poisson processes, returns after random waits."""
    from tangram_sim.reliability.failures import load_failures
    from tangram_sim.reliability.spot.generate import SpotRates, spot_rates, trace_text
    from tangram_sim.reliability.spot.generate import generate as made

    outputs.require_writable()
    counts = counts_by_kind("--nodes", list(asked.nodes))
    if asked.failures is not None:
        model = load_failures(asked.failures)
        rates = {
            kind: spot_rates(model, kind, asked.return_s, asked.burst, asked.leaf_nodes) for kind in counts
        }
    else:
        return_s = 600.0 if asked.return_s is None else asked.return_s
        rates = dict.fromkeys(counts, SpotRates(asked.losses_per_node_hour or 0.0, return_s, asked.burst))
    outputs.write(trace_text(made(counts, rates, asked.hours * HOUR_S, asked.seed)))


@app.command("describe")
@derived
def describe(asked: TraceToDescribe, shown: Shown) -> None:
    """Counts, losses per node-hour, bursts of a trace."""
    from tangram_sim.reliability.spot.generate import describe as described_trace
    from tangram_sim.reliability.spot.tracefile import read_trace

    found = described_trace(read_trace(asked.trace, asked.trace_name))
    shown.show(asdict(found), lambda _: _show(found))


def _show(found: "Description") -> None:
    """Print the figures of a trace."""
    print_line(
        f"{found.duration_s / HOUR_S:.2f} h   {found.events} events   {found.added} nodes came, "
        f"{found.lost} went   "
        f"{found.fewest_nodes} to {found.most_nodes} at a time, {found.mean_nodes:.1f} in the mean"
    )
    rows = [
        ("losses per node-hour", f"{found.losses_per_node_hour:.3g}"),
        ("changes per hour", f"{found.changes_per_hour:.3g}"),
        ("seconds between changes", f"{found.mean_gap_s:,.0f}"),
        ("times with losses", f"{found.loss_times}"),
        ("nodes lost at one time, at most", f"{found.largest_loss}"),
        ("losses that came with others", f"{found.losses_in_bursts * 100:.0f} %"),
    ]
    rows += [(f"nodes of {kind} that came", str(count)) for kind, count in found.kinds.items() if kind]
    print_table(("figure", "value"), rows, right=(1,))


def counts_by_kind(option: str, given: list[str]) -> dict[str, int]:
    """Counts by GPU or node kind from items `NUMBER` (under the kind "") or `KIND=NUMBER`.

    Raises BadInputError, naming `option`, for anything else.
    """
    found: dict[str, int] = {}
    for item in given:
        kind, _, number = item.rpartition("=")
        if not (number.isascii() and number.isdigit() and 0 < int(number[:9]) <= 100_000):
            raise BadInputError(
                f"{option} {item}: give a number from 1 to 100000, or KIND=NUMBER, e.g. T4=16"
            )
        if kind in found:
            raise BadInputError(f"{option} gives {kind or 'a number without kind'} twice; keep one")
        found[kind] = int(number)
    return found
