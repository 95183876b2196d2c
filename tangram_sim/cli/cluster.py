"""`tangram cluster`: cluster files from the output of nvidia-smi, Slurm or Kubernetes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import FileOutput
from tangram_sim.fields import about
from tangram_sim.naming import printable
from tangram_sim.questions.shared_fields import Hardware

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.hwdb.inventories import Inventory

_MOST_SAID = 5  # nodes left out that are named beside the file, which names all

app = typer.Typer(
    help="Cluster files from saved output of nvidia-smi, Slurm, Kubernetes.", no_args_is_help=True
)


@dataclass(frozen=True, slots=True)
class Saved:
    """Output of a command that lists all nodes."""

    saved: Path = field(metadata=about("What the command printed, in a file.", positional="SAVED"))


@dataclass(frozen=True, slots=True)
class SavedByNode:
    """Outputs of commands run on each node."""

    saved: tuple[Path, ...] = field(
        metadata=about(
            "`nvidia-smi -q -x`, a file per node, and `nvidia-smi topo -m` in files of the same name "
            "(node1.xml, node1.topo), or in one file for all.",
            positional="SAVED...",
        )
    )


@app.command("from-nvidia-smi")
@derived
def from_nvidia_smi(given: SavedByNode, outputs: FileOutput, hardware: Hardware) -> None:
    """Write a cluster file from `nvidia-smi -q -x` of every node, its links from `nvidia-smi topo -m`."""
    from tangram_sim.datafiles import read_text
    from tangram_sim.hwdb import inventories

    database = hardware.load()
    texts = {str(path): read_text(path) for path in given.saved}
    _finish(inventories.from_nvidia_smi(texts, database), database, outputs)


@app.command("from-slurm")
@derived
def from_slurm(given: Saved, outputs: FileOutput, hardware: Hardware) -> None:
    """Write a cluster file from `sinfo -N -o "%N %G %T"` or `scontrol show node`."""
    from tangram_sim.datafiles import read_text
    from tangram_sim.hwdb.slurm_inventory import from_slurm as read

    database = hardware.load()
    _finish(read(read_text(given.saved), database, str(given.saved)), database, outputs)


@app.command("from-k8s")
@derived
def from_k8s(given: Saved, outputs: FileOutput, hardware: Hardware) -> None:
    """Write a cluster file from `kubectl get nodes -o json`."""
    from tangram_sim.datafiles import read_text
    from tangram_sim.hwdb.kubernetes_inventory import from_k8s as read

    database = hardware.load()
    _finish(read(read_text(given.saved), database, str(given.saved)), database, outputs)


def _finish(inventory: "Inventory", hwdb: "Hwdb", outputs: FileOutput) -> None:
    """Write or print the cluster file.

    Facts that were read become keys; what was inferred or assumed is stated in comments.
    """
    import sys
    from dataclasses import replace

    from tangram_sim.hwdb import cluster_from_dict
    from tangram_sim.hwdb.inferred_links import stated_graph
    from tangram_sim.hwdb.wiring_section import wiring_to_dict

    outputs.require_writable()
    found = inventory.groups
    cluster = cluster_from_dict({"nodes": [group.entry for group in found]}, hwdb)
    read = "# Read: kinds, GPUs per node, nodes. "
    if any(group.inside.keys for group in found):
        lines = [read + "Inferred from the matrix: links, sockets, switches, NICs. Check nic_gbps."]
    else:
        lines = [read + "Links and NICs are assumed: state intra_link and nic_gbps."]
    left_out = [" ".join(printable(item).split()) for item in inventory.left_out]
    lines += [f"# Left out: {words}" for words in left_out]
    lines.append("nodes:")
    for found_group, group in zip(found, cluster.groups, strict=True):
        stated = found_group.entry.get("labels", ())
        said = "; ".join(
            (*found_group.inside.said, *(label for label in group.node.labels if label not in stated))
        )
        keys = ", ".join(f"{key}: {_flow(value)}" for key, value in found_group.entry.items())
        lines.append(f"  - {{{keys}}}{f'  # {said}' if said else ''}")
    if wiring := stated_graph(cluster, [found_group.inside for found_group in found]):
        lines.append("topology:")
        for part, entries in wiring_to_dict(wiring).items():
            lines += [f"  {part}:", *(f"    - {_flow(entry)}" for entry in entries)]
        cluster = replace(cluster, wiring=wiring)
    text = "\n".join(lines) + "\n"
    for words in left_out[:_MOST_SAID]:
        sys.stderr.write(f"left out: {words}\n")
    if len(left_out) > _MOST_SAID:
        sys.stderr.write(f"left out: {len(left_out) - _MOST_SAID} nodes more, named in the file\n")
    place = outputs.output
    outputs.write(
        text, f"{cluster.gpus} GPUs written to {place}; look at them with `tangram islands {place}`"
    )


def _flow(value: Any) -> str:
    """A value as YAML on one line: JSON (which YAML can read), but text without quotes."""
    import json

    return value if isinstance(value, str) else json.dumps(value)
