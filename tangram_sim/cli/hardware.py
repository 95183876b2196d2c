"""`tangram hw` and `tangram islands`: what hardware is known, and how a cluster is cut."""

import typer

from tangram_sim.cli import options as shared
from tangram_sim.cli.console import print_json, print_table
from tangram_sim.units import show_bytes, show_rate

app = typer.Typer(help="The hardware database: GPUs, links, nodes, clusters.", no_args_is_help=True)


@app.command("list")
def list_hardware(hwdb: shared.HwdbFolders = None, as_json: shared.AsJson = False) -> None:
    """List GPUs, links, nodes and example clusters."""
    from tangram_sim.hwdb import cluster_names

    database = shared.load_hwdb(hwdb)
    if as_json:
        print_json(
            {
                "gpus": database.gpu_names(),
                "links": database.link_names(),
                "nodes": database.node_names(),
                "clusters": cluster_names(),
            }
        )
        return
    rows = []
    for name in database.gpu_names():
        gpu = database.gpu(name)
        best = max(gpu.peak_flop_per_s("bf16"), gpu.peak_flop_per_s("fp16"))
        dtypes = " ".join(dtype for dtype, _ in gpu.peaks)
        rows.append(
            (name, gpu.architecture, f"{best / 1e12:.4g}", f"{gpu.memory_bytes / 1e9:.0f}", f"{gpu.memory_bytes_per_s / 1e9:.0f}", dtypes)
        )
    print_table(("GPU", "architecture", "bf16/fp16 TFLOP/s", "GB", "GB/s", "dtypes"), rows, right=(2, 3, 4))
    for kind, names in (("links", database.link_names()), ("nodes", database.node_names()), ("clusters", cluster_names())):
        typer.echo(f"{kind}: {', '.join(names)}\n")


@app.command("show")
def show(name: str, hwdb: shared.HwdbFolders = None, as_json: shared.AsJson = False) -> None:
    """Show one GPU, link or node with its source, or one cluster."""
    from tangram_sim.errors import UnknownNameError, unknown_name
    from tangram_sim.hwdb import cluster_names

    database = shared.load_hwdb(hwdb)
    for table in ("gpus", "links", "nodes"):
        try:
            row = database.row(table, name)
        except UnknownNameError:
            continue
        facts = {"name": row.name, **row.facts(), "table": table, "read_from": str(row.where)}
        if as_json:
            print_json(facts)
        else:
            print_table((row.name, ""), [(key, str(value)) for key, value in facts.items() if value and key != "name"])
        return
    if name in cluster_names():
        islands(name, "auto", hwdb, as_json)
        return
    known = [*database.gpu_names(), *database.link_names(), *database.node_names(), *cluster_names()]
    raise unknown_name("hardware", name, known, "See `tangram hw list`.")


def islands(
    cluster: shared.ClusterArgument,
    dtype: shared.Dtype = "auto",
    hwdb: shared.HwdbFolders = None,
    as_json: shared.AsJson = False,
    compute_tolerance: float = typer.Option(0.10, help="Largest spread of compute inside an island, max/min - 1."),
    memory_tolerance: float = typer.Option(0.05, help="Largest spread of memory."),
    link_tolerance: float = typer.Option(0.10, help="Largest spread of intra-node bandwidth."),
) -> None:
    """Cut CLUSTER into islands of equal GPUs and say why each cut is made."""
    from tangram_sim.hwdb import load_cluster
    from tangram_sim.jobs import Job
    from tangram_sim.planners.islands import Tolerances, find_islands
    from tangram_sim.studies.api import resolve
    from tangram_sim.studies.documents import IslandDocument, IslandsDocument

    database = shared.load_hwdb(hwdb)
    found = load_cluster(cluster, database)
    recipe = resolve(Job(dtype=dtype), found).recipe
    tolerances = Tolerances(compute_tolerance, memory_tolerance, link_tolerance)
    cut = find_islands(found, recipe.gemm_dtype, tolerances, hwdb=database)
    document = IslandsDocument(
        cluster=found.name,
        dtype=recipe.name,
        islands=[
            IslandDocument(
                name=island.name,
                gpu=island.gpu.name,
                nodes=island.nodes,
                gpus=island.gpus,
                reason=island.reason,
                compute_flop_per_s=island.gpu.peak_flop_per_s(recipe.gemm_dtype),
                memory_bytes=island.gpu.memory_bytes,
                memory_bytes_per_s=island.gpu.memory_bytes_per_s,
                intra_link=island.intra.name,
                intra_bytes_per_s=island.intra.bytes_per_s,
                nic_bytes_per_s=island.nic_bytes_per_s,
            )
            for island in cut
        ],
    )
    if as_json:
        print_json(document.model_dump())
        return
    rows = [
        (
            one.name,
            f"{one.nodes} x {one.gpus // one.nodes} {one.gpu}",
            f"{one.compute_flop_per_s / 1e12:.4g}",
            show_bytes(one.memory_bytes),
            f"{one.intra_link} {show_rate(one.intra_bytes_per_s)}",
            show_rate(one.nic_bytes_per_s),
            one.reason,
        )
        for one in document.islands
    ]
    print_table(
        ("island", "GPUs", f"TFLOP/s {document.dtype}", "memory", "inside a node", "NIC", "reason"), rows, right=(2, 3, 5)
    )
