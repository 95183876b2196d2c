"""`tangram trace generate | describe`: histories of nodes coming and going."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.cli.console import print_json, print_line, print_table
from tangram_sim.errors import BadInputError
from tangram_sim.units import HOUR_S

app = typer.Typer(
    help="Histories of nodes coming and going: make one, or say what one is like.", no_args_is_help=True
)

Nodes = Annotated[
    list[str], typer.Option("--nodes", help="How many there are at first: 32, or KIND=32; may be repeated.")
]
Hours = Annotated[float, typer.Option("--hours", help="How long the history is.")]
Losses = Annotated[
    float | None, typer.Option("--losses-per-node-hour", help="Rate at which a node goes, e.g. 0.2 for spot.")
]
Failures = Annotated[
    str | None, typer.Option("--failures", help="A preset or file of failure classes in place of a rate.")
]
Return = Annotated[
    float | None, typer.Option("--return-s", help="Mean seconds until another node comes; 0: never.")
]
LeafNodes = Annotated[
    int, typer.Option("--leaf-nodes", help="Nodes of a kind under one leaf, which --failures may take.")
]
Burst = Annotated[float, typer.Option("--burst", help="Further nodes that go with a lost one, in the mean.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Equal seeds give equal traces.")]


@app.command("generate")
def generate(
    nodes: Nodes,
    hours: Hours = 12.0,
    losses_per_node_hour: Losses = None,
    failures: Failures = None,
    return_s: Return = None,
    burst: Burst = 0.0,
    leaf_nodes: LeafNodes = 0,
    seed: Seed = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write it to this CSV file.")] = None,
) -> None:
    """Make a trace from rates and a seed: losses as Poisson processes, returns after random waits."""
    import sys

    from tangram_sim.datafiles import write_whole
    from tangram_sim.reliability.failures import load_failures
    from tangram_sim.reliability.spot.generate import SpotRates, spot_rates, trace_text
    from tangram_sim.reliability.spot.generate import generate as made

    counts = shared.counts_by_kind("--nodes", nodes)
    for option, value in (
        ("--hours", hours),
        ("--losses-per-node-hour", losses_per_node_hour or 0.0),
        ("--return-s", return_s or 0.0),
        ("--burst", burst),
    ):
        shared.require_fraction(option, value)
    if not 0 < hours <= 100_000:
        raise BadInputError(f"--hours {hours:g}: give a number above 0, at most 100000")
    if leaf_nodes < 0:
        raise BadInputError(f"--leaf-nodes {leaf_nodes}: give 1 or more, or 0 for all of a kind")
    if (losses_per_node_hour is None) == (failures is None):
        raise BadInputError("give one of --losses-per-node-hour and --failures")
    if failures is not None:
        model = load_failures(failures)
        rates = {kind: spot_rates(model, kind, return_s, burst, leaf_nodes) for kind in counts}
    else:
        item = SpotRates(losses_per_node_hour or 0.0, 600.0 if return_s is None else return_s, burst)
        rates = dict.fromkeys(counts, item)
    text = trace_text(made(counts, rates, hours * HOUR_S, seed))
    if output is not None:
        write_whole(output, text)
        return
    sys.stdout.write(text)


@app.command("describe")
def describe(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace file, as for `train replay`.")],
    trace_name: Annotated[str, typer.Option("--trace-name", help="Which of several in the file.")] = "",
    as_json: shared.AsJson = False,
) -> None:
    """Counts, losses per node-hour, bursts of a trace."""
    from tangram_sim.reliability.spot.generate import describe as described
    from tangram_sim.reliability.spot.tracefile import read_trace

    found = described(read_trace(trace, trace_name))
    if as_json:
        print_json(asdict(found))
        return
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
