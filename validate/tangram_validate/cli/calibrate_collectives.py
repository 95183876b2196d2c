"""`tangram calibrate collectives`: rows of hwdb/collectives from a log of measured collectives."""

from pathlib import Path
from typing import Annotated

import typer

from tangram_sim.cli.console import print_json
from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import Shown
from tangram_sim.questions.shared_fields import Hardware


@derived
def collectives(
    log: Annotated[
        Path, typer.Argument(metavar="LOG", help="Output of nccl-tests or rccl-tests, or a sweep CSV.")
    ],
    gpu: Annotated[str, typer.Option("--gpu", help="GPU kind, where the log names none.")] = "",
    link: Annotated[str, typer.Option("--link", help="Link inside the node; default: the GPU's own.")] = "",
    nic: Annotated[str, typer.Option("--nic", help="Class of NICs, for logs of several nodes.")] = "",
    nic_gbps: Annotated[
        float, typer.Option("--nic-gbps", help="All NICs of one node together, Gbit/s, one direction.")
    ] = 0.0,
    op: Annotated[str, typer.Option("--op", help="Operation, where the log names none.")] = "",
    *,
    hardware: Hardware,
    shown: Shown,
) -> None:
    """Fit rows of hwdb/collectives to LOG, print them, and say what the fabric reaches of what it should.

    Nothing is written: save the rows as collectives/mine.csv in a folder and pass it with --hwdb.
    """
    from tangram_sim.units import GIGA
    from tangram_validate.collectives import logs, ownfabric, rows

    database = hardware.load()
    parts = ownfabric.FabricParts(gpu, link, nic, nic_gbps)
    points = ownfabric.points_of(logs.read_log(log, op), parts, str(log), database)
    reached = ownfabric.reached(points, database)
    sets = ownfabric.fit_own(points, database, log)
    missed = ownfabric.missed(points, sets, database)
    if shown.as_json:
        columns = rows.HEADER.split(",")
        print_json(
            {
                "rows": [dict(zip(columns, row, strict=True)) for one in sets for row in one.rows()],
                "median_error": missed,
                "reached": [
                    {
                        "op": one.op,
                        "ranks": one.ranks,
                        "nodes": one.nodes,
                        "size_bytes": one.size_bytes,
                        "busbw_bytes_per_s": one.busbw_bytes_per_s,
                        "expected_bytes_per_s": one.expected_bytes_per_s,
                        "share": one.share,
                        "faulty": one.faulty,
                        "implausible": one.implausible,
                    }
                    for one in reached
                ],
            }
        )
        return
    typer.echo(rows.csv_text(sets), nl=False)
    typer.echo(f"# with these rows the log's own points are missed by {100 * missed:.1f} %, median", err=True)
    for one in reached:
        where = f"{one.op}, {one.ranks} ranks on {one.nodes} node{'s' if one.nodes > 1 else ''}"
        figures = f"{one.busbw_bytes_per_s / GIGA:.1f} of {one.expected_bytes_per_s / GIGA:.1f} GB/s"
        typer.echo(f"# {where}: {figures} bus bandwidth, {100 * one.share:.0f} %", err=True)
        if one.faulty:
            typer.echo(
                f"# warning: less than {100 * ownfabric.LEAST_REACHED:.0f} % of what its parts "
                "allow: look for disabled peer access, a fallback to TCP, a missing NIC or a congested "
                "uplink before using these rows",
                err=True,
            )
        if one.implausible:
            typer.echo(
                "# warning: more than its parts can: other parts than --gpu, --link, --nic, --nic-gbps say, "
                "or another unit of time or size in the log? correct them before using these rows",
                err=True,
            )
