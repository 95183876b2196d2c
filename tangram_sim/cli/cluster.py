"""`tangram cluster`: cluster files from the output of nvidia-smi, Slurm or Kubernetes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tangram_sim.cli import options as shared
from tangram_sim.naming import printable

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.hwdb.inventories import Inventory

_MOST_SAID = 5  # nodes left out that are named beside the file, which names all

app = typer.Typer(
    help="Cluster files from saved output of nvidia-smi, Slurm, Kubernetes.", no_args_is_help=True
)
Saved = Annotated[Path, typer.Argument(metavar="SAVED", help="What the command printed, in a file.")]


@app.command("from-nvidia-smi")
def from_nvidia_smi(
    saved: Annotated[
        list[Path],
        typer.Argument(
            metavar="SAVED...",
            help="`nvidia-smi -q -x`, a file per node, and `nvidia-smi topo -m` in files of the same name "
            "(node1.xml, node1.topo), or in one file for all.",
        ),
    ],
    output: shared.Output = None,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """Write a cluster file from `nvidia-smi -q -x` of every node, its links from `nvidia-smi topo -m`."""
    from tangram_sim.datafiles import read_text
    from tangram_sim.hwdb import inventories

    database = shared.load_hwdb(hwdb)
    texts = {str(path): read_text(path) for path in saved}
    _finish(inventories.from_nvidia_smi(texts, database), database, output)


@app.command("from-slurm")
def from_slurm(saved: Saved, output: shared.Output = None, hwdb: shared.HwdbFolders = None) -> None:
    """Write a cluster file from `sinfo -N -o "%N %G %T"` or `scontrol show node`."""
    from tangram_sim.datafiles import read_text
    from tangram_sim.hwdb.slurm_inventory import from_slurm as read

    database = shared.load_hwdb(hwdb)
    _finish(read(read_text(saved), database, str(saved)), database, output)


@app.command("from-k8s")
def from_k8s(saved: Saved, output: shared.Output = None, hwdb: shared.HwdbFolders = None) -> None:
    """Write a cluster file from `kubectl get nodes -o json`."""
    from tangram_sim.datafiles import read_text
    from tangram_sim.hwdb.kubernetes_inventory import from_k8s as read

    database = shared.load_hwdb(hwdb)
    _finish(read(read_text(saved), database, str(saved)), database, output)


def _finish(inventory: "Inventory", hwdb: "Hwdb", output: Path | None) -> None:
    """Write the cluster file, or print it if there is no `output`.

    What was read becomes keys; what was inferred or assumed is said in comments.
    """
    import sys
    from dataclasses import replace

    from tangram_sim.cli.console import print_line
    from tangram_sim.cli.writing import require_writable
    from tangram_sim.datafiles import write_whole
    from tangram_sim.hwdb import cluster_from_dict
    from tangram_sim.hwdb.inferred_links import stated_graph
    from tangram_sim.hwdb.wiring_section import wiring_to_dict

    require_writable(output=output)
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
    if output is None:
        sys.stdout.write(text)
        return
    write_whole(output, text)
    print_line(f"{cluster.gpus} GPUs written to {output}; look at them with `tangram islands {output}`")


def _flow(value: Any) -> str:
    """A value as YAML on one line: JSON (which YAML can read), but text without quotes."""
    import json

    return value if isinstance(value, str) else json.dumps(value)
