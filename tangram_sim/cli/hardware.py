"""`tangram hw` and `tangram islands`: the known hardware, and how a cluster is split into equal GPUs."""

from typing import TYPE_CHECKING, Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.cli.add_gpu import add_gpu
from tangram_sim.cli.console import print_json, print_line, print_table
from tangram_sim.cli.price_listing import prices
from tangram_sim.units import show_bytes, show_rate

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb

app = typer.Typer(help="The hardware database: GPUs, links, nodes, clusters.", no_args_is_help=True)
app.command("add-gpu")(add_gpu)
app.command("prices")(prices)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A GPU, link, node or cluster.")]
ComputeTolerance = Annotated[
    float,
    typer.Option("--compute-tolerance", help="Largest spread of compute inside an island: max/min - 1."),
]
MemoryTolerance = Annotated[
    float, typer.Option("--memory-tolerance", help="Largest spread of memory inside an island.")
]
LinkTolerance = Annotated[
    float, typer.Option("--link-tolerance", help="Largest spread of intra-node bandwidth inside an island.")
]


@app.command("list")
def list_hardware(hwdb: shared.HwdbFolders = None, as_json: shared.AsJson = False) -> None:
    """List GPUs, links, nodes and example clusters."""
    from tangram_sim.hwdb import cluster_names

    database = shared.load_hwdb(hwdb)
    names = {
        "gpus": list(database.gpu_names()),
        "links": list(database.link_names()),
        "nodes": list(database.node_names()),
        "clusters": list(cluster_names(database)),
    }
    if as_json:
        print_json(names)
        return
    rows = []
    for name in names["gpus"]:
        gpu = database.gpu(name)
        best = max(gpu.peak_flop_per_s("bf16"), gpu.peak_flop_per_s("fp16"))
        rows.append(
            (
                name,
                gpu.architecture,
                f"{best / 1e12:.4g}" if best else "-",
                f"{gpu.memory_bytes / 1e9:.0f}",
                f"{gpu.memory_bytes_per_s / 1e9:.0f}",
                " ".join(dtype for dtype, _ in gpu.peaks),
            )
        )
    columns = ("GPU", "architecture", "16-bit TFLOP/s", "GB", "GB/s", "dtypes")
    print_table(columns, rows, right=(2, 3, 4))
    for kind in ("links", "nodes", "clusters"):
        print_line(f"{kind}: {', '.join(names[kind])}")


@app.command("show")
def show(name: NameArgument, hwdb: shared.HwdbFolders = None, as_json: shared.AsJson = False) -> None:
    """Show one GPU, link or node with its source, or the islands of one cluster."""
    from tangram_sim.errors import UnknownNameError, unknown_name
    from tangram_sim.hwdb import cluster_names

    database = shared.load_hwdb(hwdb)
    for table in ("gpus", "links", "nodes"):
        try:
            row = database.row(table, name)
        except UnknownNameError:
            continue
        efficiencies = _efficiencies(database, row.name) if table == "gpus" else []
        facts = {column: cell for column, cell in row.cells.items() if cell}
        if as_json:
            figures = {column: _figure(cell) for column, cell in facts.items()}
            print_json(
                {"table": table, **figures, "read_from": row.origins["name"], "efficiency": efficiencies}
            )
            return
        shown = [(column, cell) for column, cell in facts.items() if column != "name"]
        print_table((row.name, ""), [*shown, ("read from", row.origins["name"])])
        if efficiencies:
            keys = ("kernel", "parameter", "value", "sigma", "source")
            values = [
                tuple(f"{e[key]:g}" if key in ("value", "sigma") else str(e[key]) for key in keys)
                for e in efficiencies
            ]
            print_table(keys, values, right=(2, 3))
        return
    if name in cluster_names(database):
        islands(name, hwdb=hwdb, as_json=as_json)
        return
    known = [*database.gpu_names(), *database.link_names(), *database.node_names(), *cluster_names(database)]
    raise unknown_name("hardware", name, known, "`tangram hw list` prints all of it.")


@app.command("parameters")
def parameters(hwdb: shared.HwdbFolders = None, as_json: shared.AsJson = False) -> None:
    """List every parameter in force, calibrated or assumed: value, error, and what it was fitted to."""
    from tangram_sim.studies.parameters import parameters as listed

    found = listed(shared.load_hwdb(hwdb))
    if as_json:
        print_json(found.model_dump())
        return
    rows = [
        (
            f"{one.kernel} {one.parameter}",
            one.gpu,
            one.dtype,
            one.stack,
            f"{one.value:g}",
            f"{one.sigma:g}" if one.sigma else "-",
            str(one.n),
            one.unit,
            one.fitted_on,
            one.source if one.source != one.fitted_on else "-",
        )
        for one in found.parameters
    ]
    columns = (
        "parameter",
        "GPU or link",
        "dtype",
        "stack",
        "value",
        "sigma",
        "n",
        "unit",
        "rests on",
        "source",
    )
    print_table(columns, rows, right=(4, 5, 6), leaves=(9, 6, 7, 8, 3, 2, 5))
    counts = found.counts
    most = max(counts.by_gpu_and_dtype.values(), default=0)
    stacks = max(counts.by_stack.values(), default=0)
    fits = ", ".join(f"{count} {name}" for name, count in counts.by_fit.items())
    print_line(f"{len(rows)} rows: {fits}.")
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


def islands(
    cluster: shared.ClusterArgument,
    dtype: shared.Dtype = "auto",
    hwdb: shared.HwdbFolders = None,
    as_json: shared.AsJson = False,
    compute_tolerance: ComputeTolerance = 0.10,
    memory_tolerance: MemoryTolerance = 0.05,
    link_tolerance: LinkTolerance = 0.10,
) -> None:
    """Cut CLUSTER into islands of equal GPUs and say why each cut is made.

    Memory of a GPU is shown as sold (GB are 1e9 bytes), usable (what the driver hands out; "of" in tables of
    plans), and planned (what a plan may fill: less the driver's context and what the software stack keeps).
    """
    for option, value in (
        ("compute", compute_tolerance),
        ("memory", memory_tolerance),
        ("link", link_tolerance),
    ):
        shared.require_fraction(f"--{option}-tolerance", value)

    from tangram_sim.cost.device import capacities
    from tangram_sim.hwdb import load_cluster
    from tangram_sim.hwdb.usual_node import ASSUMED
    from tangram_sim.placement.islands import Tolerances, find_islands
    from tangram_sim.studies.documents import IslandDocument, IslandsDocument
    from tangram_sim.studies.number_formats import resolve
    from tangram_sim.training.job import Job

    database = shared.load_hwdb(hwdb)
    found = load_cluster(cluster, database)
    precision = resolve(Job(dtype=dtype), found).precision
    tolerances = Tolerances(compute_tolerance, memory_tolerance, link_tolerance)
    cut = find_islands(found, precision.compute, tolerances, hwdb=database)
    memory = [
        capacities(island.gpu, database.efficiency(island.gpu, precision.compute, Job().stack))
        for island in cut
    ]
    document = IslandsDocument(
        cluster=found.name,
        dtype=precision.name,
        islands=[
            IslandDocument(
                name=island.name,
                gpu=island.gpu.name,
                nodes=island.nodes,
                gpus=island.gpus,
                reason=island.reason,
                compute_flop_per_s=island.gpu.peak_flop_per_s(precision.compute),
                memory_bytes=island.gpu.memory_bytes,
                usable_memory_bytes=usable,
                planned_memory_bytes=planned,
                memory_bytes_per_s=island.gpu.memory_bytes_per_s,
                intra_link=island.intra.name,
                intra_bytes_per_s=island.intra.bytes_per_s,
                nic_bytes_per_s=island.nic_bytes_per_s,
            )
            for island, (usable, planned) in zip(cut, memory, strict=True)
        ],
    )
    if as_json:
        print_json(document.model_dump())
        return
    rows = [
        (
            one.name,
            f"{one.nodes} x {one.gpus // one.nodes} {one.gpu}",
            f"{one.compute_flop_per_s / 1e12:.4g}" if one.compute_flop_per_s else "none",
            f"{one.memory_bytes / 1e9:.3g} GB",
            *map(show_bytes, (one.usable_memory_bytes, one.planned_memory_bytes)),
            f"{one.intra_link} {show_rate(one.intra_bytes_per_s)}",
            show_rate(one.nic_bytes_per_s),
        )
        for one in document.islands
    ]
    memories = ("memory sold", "usable", "planned")
    columns = ("island", "GPUs", f"{document.dtype} TFLOP/s", *memories, "inside a node", "NICs of a node")
    print_table(columns, rows, right=(2, 3, 4, 5, 7), leaves=(3, 5, 6))
    for one in document.islands:
        print_line(f"{one.name}: {one.reason}")
    for group in found.groups:
        for label in group.node.labels:
            if label.startswith(ASSUMED):
                print_line(f"{group.name}: {label}")
