"""`tangram calibrate failures`: failure classes for `--failures` from a list of incidents."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tangram_sim.cli.console import print_json, print_line, print_table
from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import Shown
from tangram_sim.cli.trace import counts_by_kind
from tangram_sim.errors import BadInputError


@derived
def failures(
    incidents: Annotated[
        Path,
        typer.Argument(
            metavar="INCIDENTS.csv",
            help="One incident a row: class[,takes][,count][,detect_s][,repair_h][,gpu].",
        ),
    ],
    nodes: Annotated[
        list[str], typer.Option("--nodes", help="Nodes they were counted on: 64, or GPU=64; may be repeated.")
    ],
    days: Annotated[float, typer.Option("--days", help="Days they were counted for.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write a file for --failures here.")
    ] = None,
    *,
    shown: Shown,
) -> None:
    """Fit rates by class to INCIDENTS.csv, with the intervals that so few counts leave."""
    from tangram_sim.cli.writing import require_writable
    from tangram_sim.datafiles import write_whole
    from tangram_validate.calibration.incidents import Exposure, failures_text, fit_incidents

    require_writable(output=output)
    if not 0 < days < math.inf:
        raise BadInputError(f"--days {days:g}: give a number above 0")
    counts = counts_by_kind("--nodes", nodes)
    found = fit_incidents(incidents, Exposure({kind: float(count) for kind, count in counts.items()}, days))
    total = sum(counts.values())
    source = (
        f"{incidents.name}: {sum(one.count for one in found)} incidents on {total} nodes in {days:g} days"
    )
    if output is not None and found:
        write_whole(output, failures_text(found, source))
    if shown.as_json:
        print_json({"source": source, "classes": [asdict(one) for one in found]})
        return
    if not found:
        print_line(
            f"{incidents}: no incidents; the rate is likely below {3000 / (total * days):.3g} per 1,000 "
            f"node-days{'' if output is None else f'; {output} is not written, there is no class to fit'}"
        )
        return
    rows = [
        (
            one.name,
            one.takes,
            one.gpu or "all",
            str(one.count),
            f"{one.per_1000_node_days:.3g}",
            f"{one.low:.3g} to {one.high:.3g}",
        )
        for one in found
    ]
    heads = ("class", "takes", "gpu", "count", "per 1,000 node-days", "90 %")
    print_table(heads, rows, right=(3, 4, 5))
    if output is not None:
        print_line(f"written to {output} (use it with --failures {output})")
