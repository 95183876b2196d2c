"""`tangram hw topology` and `tangram collectives plan`: a cluster's network, and collectives on it."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import typer

from tangram_sim.cli.console import print_json, print_line, print_table
from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import Shown
from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.fields import described, option
from tangram_sim.questions.shared_fields import Hardware, cluster_argument
from tangram_sim.units import show_rate, show_seconds

app = typer.Typer(help="Collectives: plans on a cluster's tree of switches.", no_args_is_help=True)

_PARAMETERS = {
    "alpha": "alpha_s",
    "gamma": "gamma_s_per_byte",
    "delta": "delta_s_per_byte",
    "epsilon": "epsilon_s_per_byte",
    "senders": "senders",
}


@described
@dataclass(frozen=True, slots=True)
class GraphShown:
    """The cluster whose graph is shown, and how."""

    cluster: str = cluster_argument()
    full: bool = option(
        False, "Print the graph as a cluster file with all vertices and edges, to edit.", basic=True
    )


@described
@dataclass(frozen=True, slots=True)
class CollectiveAsked:
    """One collective over all GPUs of a cluster."""

    cluster: str = cluster_argument()
    op: str = option("all_reduce", "all_reduce, reduce_scatter or all_gather.", basic=True)
    size: float = option(268435456.0, "Size of the full buffer.", unit="bytes", spelled="--bytes", basic=True)
    algorithm: str = option(
        "gentree", "gentree, ring, halving-doubling, colocated-ps, hierarchical-ring, ...", basic=True
    )
    settings: tuple[str, ...] = option(
        (),
        "A GenModel parameter at every switch, like epsilon=1e-12; may be repeated.",
        spelled="--set",
        basic=True,
    )


@derived
def topology(asked: GraphShown, hardware: Hardware, shown: Shown) -> None:
    """Show the graph of CLUSTER: vertices, links, bandwidth between boxes, limits of all GPUs together."""
    from tangram_sim.hwdb import cluster_to_dict, load_cluster
    from tangram_sim.studies.interconnect import describe_topology

    database = hardware.load()
    given = load_cluster(asked.cluster, database)
    if asked.full:
        from dataclasses import replace

        from tangram_sim.topology.full import full_wiring

        print_json(cluster_to_dict(replace(given, wiring=full_wiring(given))))
        return
    shown.show(describe_topology(given, database), _show_graph)


def _show_graph(found: dict[str, Any]) -> None:
    """Print a graph's vertices and links, bandwidth between boxes, and limits of all GPUs together."""
    from tangram_sim.topology.forms import NIC_SLOT

    counts = ", ".join(f"{count:,} {kind}" for kind, count in found["vertices"].items())
    print_line(f"{found['cluster']}: {'derived' if found['derived'] else 'stated'} graph of {counts}")
    print_line()
    rows = [
        (
            item["link"],
            f"{item['count']:,}",
            show_rate(item["least_bytes_per_s"])
            + (
                f" to {show_rate(item['most_bytes_per_s'])}"
                if item["most_bytes_per_s"] > item["least_bytes_per_s"]
                else ""
            ),
        )
        for item in found["links"]
    ]
    print_table(("link", "edges", "one direction"), rows, right=(1,))
    if any(item["link"].startswith(NIC_SLOT) for item in found["links"]):
        print_line(f"{NIC_SLOT}: twice the NIC's rate, since files may lump ports together; not a PCIe rate")
        print_line()
    boxes = [
        (
            item["like"] + (f" and {item['count'] - 1:,} more" if item["count"] > 1 else ""),
            str(item["gpus"]),
            str(item["nics"]),
            show_rate(item["ring_bytes_per_s"]) if item["ring_bytes_per_s"] else "-",
            show_rate(item["nic_bytes_per_s"]),
        )
        for item in found["boxes"]
    ]
    print_table(("box", "GPUs", "NICs", "ring inside", "NICs together"), boxes, right=(1, 2, 3, 4))
    if found["bisection_bytes_per_s"]:
        half = show_rate(found["bisection_bytes_per_s"])
        print_line(f"half to half: {half}, limited by {found['bisection_limited_by']}")
    for name in ("ring", "tree", "all_to_all"):
        item = found["all_gpus"][name]
        if item["bytes_per_s"]:
            words = f"all {found['gpus']:,} GPUs, {name}: {show_rate(item['bytes_per_s'])}"
            print_line(f"{words}, limited by {item['limited_by']}")


@app.command("plan")
@derived
def plan(asked: CollectiveAsked, hardware: Hardware, shown: Shown) -> None:
    """Plan one collective over all GPUs of CLUSTER, level by level, and compare with fixed algorithms."""
    from tangram_sim.hwdb import load_cluster
    from tangram_sim.studies.interconnect import plan_collective

    database = hardware.load()
    settings = tuple(_setting(text) for text in asked.settings)
    found = plan_collective(
        load_cluster(asked.cluster, database), database, asked.op, asked.size, asked.algorithm, settings
    )
    shown.show(found, partial(_show_plan, asked))


def _show_plan(asked: CollectiveAsked, found: dict[str, Any]) -> None:
    """Print the seconds of a collective, its plan level by level, and other plans."""
    print_line(
        f"{asked.op} of {asked.size:.4g} bytes over {found['gpus']:,} GPUs by {asked.algorithm}: "
        f"{show_seconds(found['seconds'])}"
    )
    print_line()
    rows = [
        (
            str(item["level"]),
            item["switch"] + (f" x {item['switches']:,}" if item["switches"] > 1 else ""),
            f"{item['members']:,}",
            item["plan"]
            + (" over all leaves below" if item["flat"] else "")
            + (", blocks gathered first" if item["rearranged"] else ""),
            show_seconds(item["seconds"]),
        )
        for item in found["steps"]
    ]
    print_table(("level", "switch", "members", "plan", "time"), rows, right=(2, 4))
    others = [
        (other, show_seconds(seconds), f"{seconds / found['seconds']:.2f}" if found["seconds"] else "-")
        for other, seconds in found["others_s"].items()
    ]
    print_table(("other plans", "time", "ratio"), others, right=(1, 2))


def _setting(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    if name.strip() not in _PARAMETERS:
        raise unknown_name(
            "GenModel parameter", name.strip(), _PARAMETERS, "Give it like --set epsilon=1e-12."
        )
    try:
        return _PARAMETERS[name.strip()], float(value)
    except ValueError:
        raise BadInputError(
            f"--set {text}: {value!r} is no number; give it like --set epsilon=1e-12"
        ) from None
