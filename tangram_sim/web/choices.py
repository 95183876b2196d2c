"""Choices of the forms: the known hardware, models and clusters by name, with a few facts on each."""

from tangram_sim import __version__
from tangram_sim.clusters import Cluster
from tangram_sim.export.formats import FORMATS
from tangram_sim.hwdb import Hwdb, cluster_names, load_cluster, load_model, model_names
from tangram_sim.questions.question import QUESTIONS
from tangram_sim.units import GIGA
from tangram_sim.web.documents import (
    ChoicesDocument,
    ClusterChoice,
    GpuChoice,
    ModelChoice,
    NodeChoice,
)
from tangram_sim.web.forms import form_fields


def choices(hwdb: Hwdb) -> ChoicesDocument:
    """Everything that the forms offer for selection."""
    models = [load_model(name) for name in model_names()]
    return ChoicesDocument(
        version=__version__,
        models=[ModelChoice(name=m.name, parameters=m.parameters, max_seq=m.max_seq) for m in models],
        clusters=[
            ClusterChoice(name=name, gpus=_gpus(load_cluster(name, hwdb))) for name in cluster_names(hwdb)
        ],
        gpus=[_gpu(hwdb, name) for name in hwdb.gpu_names()],
        nodes=[_node(hwdb, name) for name in hwdb.node_names()],
        links=[name for name in hwdb.link_names() if hwdb.link(name).kind != "network"],
        questions={verb: form_fields(verb) for verb in QUESTIONS},
        formats=list(FORMATS),
    )


def _gpus(cluster: Cluster) -> str:
    return " + ".join(f"{group.count * group.node.gpus} x {group.node.gpu.name}" for group in cluster.groups)


def _gpu(hwdb: Hwdb, name: str) -> GpuChoice:
    gpu, link = hwdb.gpu(name), hwdb.row("gpus", name)["link"]
    return GpuChoice(
        name=name,
        vendor=gpu.vendor,
        memory_gb=gpu.memory_bytes / GIGA,
        dtypes=[dtype for dtype, _ in gpu.peaks],
        link=link if link in hwdb.link_names() and hwdb.link(link).kind != "none" else "",
    )


def _node(hwdb: Hwdb, name: str) -> NodeChoice:
    node, row = hwdb.node(name), hwdb.row("nodes", name)
    return NodeChoice(
        name=name,
        gpu=node.gpu.name,
        gpus=node.gpus,
        nic_gbps=row.number("nic_gbps"),
        usd_per_hour=node.usd_per_hour,
    )
