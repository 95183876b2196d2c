"""`tangram hw`: the known hardware."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import typer

from tangram_sim.cli.add_gpu import add_gpu
from tangram_sim.cli.console import print_columns, print_json, print_line, print_table
from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import Shown
from tangram_sim.cli.price_listing import prices
from tangram_sim.fields import about
from tangram_sim.questions.shared_fields import Hardware
from tangram_sim.reports.columns import ViewColumn

if TYPE_CHECKING:
    from tangram_sim.clusters import Gpu
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.studies.parameters import ParametersDocument

app = typer.Typer(help="The hardware database: GPUs, links, nodes, clusters.", no_args_is_help=True)
app.command("add-gpu")(add_gpu)
app.command("prices")(prices)


@dataclass(frozen=True, slots=True)
class Named:
    """Name of the hardware entry to show."""

    name: str = field(metadata=about("A GPU, link, node or cluster.", positional="NAME"))


def _16_bit_teraflops(gpu: "Gpu") -> str:
    best = max(gpu.peak_flop_per_s("bf16"), gpu.peak_flop_per_s("fp16"))
    return f"{best / 1e12:.4g}" if best else "-"


_GPUS = (
    ViewColumn("GPU", "name"),
    ViewColumn("architecture", "architecture"),
    ViewColumn("16-bit TFLOP/s", _16_bit_teraflops, "{}"),
    ViewColumn("GB", lambda gpu: gpu.memory_bytes / 1e9, "{:.0f}"),
    ViewColumn("GB/s", lambda gpu: gpu.memory_bytes_per_s / 1e9, "{:.0f}"),
    ViewColumn("dtypes", lambda gpu: " ".join(dtype for dtype, _ in gpu.peaks)),
)
_EFFICIENCIES = (
    ViewColumn("kernel", lambda row: row["kernel"]),
    ViewColumn("parameter", lambda row: row["parameter"]),
    ViewColumn("value", lambda row: row["value"], "{:g}"),
    ViewColumn("sigma", lambda row: row["sigma"], "{:g}"),
    ViewColumn("source", lambda row: row["source"]),
)
_PARAMETERS = (
    ViewColumn("parameter", lambda each: f"{each.kernel} {each.parameter}"),
    ViewColumn("GPU or link", "gpu"),
    ViewColumn("dtype", "dtype"),
    ViewColumn("stack", "stack"),
    ViewColumn("value", "value", "{:g}"),
    ViewColumn("sigma", lambda each: each.sigma or None, "{:g}"),
    ViewColumn("n", "n", "{}"),
    ViewColumn("unit", "unit"),
    ViewColumn("rests on", "fitted_on"),
    ViewColumn("source", lambda each: each.source if each.source != each.fitted_on else "-"),
)


@app.command("list")
@derived
def list_hardware(hardware: Hardware, shown: Shown) -> None:
    """List GPUs, links, nodes and example clusters."""
    from tangram_sim.hwdb import cluster_names

    database = hardware.load()
    names = {
        "gpus": list(database.gpu_names()),
        "links": list(database.link_names()),
        "nodes": list(database.node_names()),
        "clusters": list(cluster_names(database)),
    }
    if shown.as_json:
        print_json(names)
        return
    print_columns(_GPUS, [database.gpu(name) for name in names["gpus"]])
    for kind in ("links", "nodes", "clusters"):
        print_line(f"{kind}: {', '.join(names[kind])}")


@app.command("show")
@derived
def show(asked: Named, hardware: Hardware, shown: Shown) -> None:
    """Show one GPU, link or node with its source, or the islands of one cluster."""
    from tangram_sim.errors import UnknownNameError, unknown_name
    from tangram_sim.hwdb import cluster_names

    database, name = hardware.load(), asked.name
    for table in ("gpus", "links", "nodes"):
        try:
            row = database.row(table, name)
        except UnknownNameError:
            continue
        efficiencies = _efficiencies(database, row.name) if table == "gpus" else []
        facts = {column: cell for column, cell in row.cells.items() if cell}
        if shown.as_json:
            figures = {column: _figure(cell) for column, cell in facts.items()}
            print_json(
                {"table": table, **figures, "read_from": row.origins["name"], "efficiency": efficiencies}
            )
            return
        rows = [(column, cell) for column, cell in facts.items() if column != "name"]
        print_table((row.name, ""), [*rows, ("read from", row.origins["name"])])
        if efficiencies:
            print_columns(_EFFICIENCIES, efficiencies)
        return
    if name in cluster_names(database):
        from tangram_sim.cli.islands import show_islands
        from tangram_sim.questions.islands import IslandsQuestion

        shown.show(IslandsQuestion(name, hardware=hardware).answer(), show_islands)
        return
    known = [*database.gpu_names(), *database.link_names(), *database.node_names(), *cluster_names(database)]
    raise unknown_name("hardware", name, known, "`tangram hw list` prints all of it.")


@app.command("parameters")
@derived
def parameters(hardware: Hardware, shown: Shown) -> None:
    """List every parameter in force, calibrated or assumed: value, error, and what it was fitted to."""
    from tangram_sim.studies.parameters import parameters as listed

    shown.show(listed(hardware.load()), _show_parameters)


def _show_parameters(found: "ParametersDocument") -> None:
    """Print one row per parameter, and counts by kind."""
    print_columns(_PARAMETERS, found.parameters, leaves=(9, 6, 7, 8, 3, 2, 5))
    counts = found.counts
    most = max(counts.by_gpu_and_dtype.values(), default=0)
    stacks = max(counts.by_stack.values(), default=0)
    fits = ", ".join(f"{count} {name}" for name, count in counts.by_fit.items())
    print_line(f"{len(found.parameters)} rows: {fits}.")
    print_line(
        f"Of a GPU kind at one dtype at most {most} on kernel times (cap {found.most_per_gpu_and_dtype}), "
        f"of a software stack at most {stacks} (cap {found.most_per_stack})."
    )


def _figure(cell: str) -> str | float:
    try:
        return float(cell)
    except ValueError:
        return cell


def _efficiencies(database: "Hwdb", gpu: str) -> list[dict[str, str | float]]:
    """The efficiency rows that predict a GPU's kernel times in bf16, else fp16, else fp32."""
    from tangram_sim.hwdb import ReadSet

    reads = ReadSet()
    database = database.read_into(reads)
    found = database.gpu(gpu)
    dtype = next((d for d in ("bf16", "fp16", "fp32") if found.peak_flop_per_s(d)), "fp32")
    database.efficiency(found, dtype)
    return [
        {
            "dtype": row["dtype"] if row["dtype"] != "*" else "any",
            "kernel": row["kernel"],
            "parameter": row["parameter"],
            "value": row.number("value"),
            "sigma": row.number("sigma"),
            "source": row["source"],
            "of": row["gpu"],
        }
        for row in reads.rows()
        if row.table == "efficiency"
    ]
