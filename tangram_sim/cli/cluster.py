"""`tangram cluster`: cluster files from what machines and schedulers print of themselves."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tangram_sim.cli import options as shared

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb

app = typer.Typer(
    help="Cluster files from saved output of nvidia-smi, Slurm, Kubernetes.", no_args_is_help=True
)
Saved = Annotated[Path, typer.Argument(metavar="SAVED", help="What the command printed, in a file.")]
Out = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write it to this file instead of printing it.")
]


@app.command("from-nvidia-smi")
def from_nvidia_smi(
    saved: Annotated[
        list[Path], typer.Argument(metavar="SAVED...", help="`nvidia-smi -q -x`, a file per node.")
    ],
    output: Out = None,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """Write a cluster file from `nvidia-smi -q -x` of every node."""
    from tangram_sim.datafiles import read_text
    from tangram_sim.hwdb import inventories

    database = shared.load_hwdb(hwdb)
    texts = {str(path): read_text(path) for path in saved}
    _finish(inventories.from_nvidia_smi(texts, database), database, output)


@app.command("from-slurm")
def from_slurm(saved: Saved, output: Out = None, hwdb: shared.HwdbFolders = None) -> None:
    """Write a cluster file from `sinfo -N -o "%N %G"` or `scontrol show node`."""
    from tangram_sim.datafiles import read_text
    from tangram_sim.hwdb import inventories

    database = shared.load_hwdb(hwdb)
    _finish(inventories.from_slurm(read_text(saved), database, str(saved)), database, output)


@app.command("from-k8s")
def from_k8s(saved: Saved, output: Out = None, hwdb: shared.HwdbFolders = None) -> None:
    """Write a cluster file from `kubectl get nodes -o json`."""
    from tangram_sim.datafiles import read_text
    from tangram_sim.hwdb import inventories

    database = shared.load_hwdb(hwdb)
    _finish(inventories.from_k8s(read_text(saved), database, str(saved)), database, output)


def _finish(nodes: list[dict[str, Any]], hwdb: "Hwdb", output: Path | None) -> None:
    """Print or write the file: what was read as keys, what the usual machines say as comments."""
    import sys

    from tangram_sim.cli.console import print_line
    from tangram_sim.cli.writing import require_writable
    from tangram_sim.datafiles import write_whole
    from tangram_sim.hwdb import cluster_from_dict

    require_writable(output=output)
    cluster = cluster_from_dict({"nodes": nodes}, hwdb)
    lines = [
        "# Read: kinds, GPUs per node, nodes. Links and NICs are assumed: state intra_link and nic_gbps."
    ]
    lines.append("nodes:")
    for entry, group in zip(nodes, cluster.groups, strict=True):
        said = "; ".join(group.node.labels)
        keys = ", ".join(f"{key}: {value}" for key, value in entry.items())
        lines.append(f"  - {{{keys}}}{f'  # {said}' if said else ''}")
    text = "\n".join(lines) + "\n"
    if output is None:
        sys.stdout.write(text)
        return
    write_whole(output, text)
    print_line(f"{cluster.gpus} GPUs written to {output}; look at them with `tangram islands {output}`")
