"""The islands of a cluster as an answer: which GPUs count as equal, with what memory and links."""

from tangram_sim.clusters import Cluster
from tangram_sim.cost.device import capacities
from tangram_sim.hwdb import Hwdb
from tangram_sim.hwdb.usual_node import ASSUMED
from tangram_sim.placement.islands import Tolerances, find_islands
from tangram_sim.studies.documents import IslandDocument, IslandsDocument
from tangram_sim.studies.number_formats import resolve
from tangram_sim.training.job import Job


def islands_document(cluster: Cluster, job: Job, tolerances: Tolerances, hwdb: Hwdb) -> IslandsDocument:
    """The islands of a cluster for a job's number format. Bytes, FLOP/s, bytes/s."""
    precision = resolve(job, cluster).precision
    cut = find_islands(cluster, precision.compute, tolerances, hwdb=hwdb)
    memory = [
        capacities(island.gpu, hwdb.efficiency(island.gpu, precision.compute, job.stack)) for island in cut
    ]
    return IslandsDocument(
        cluster=cluster.name,
        dtype=precision.name,
        islands=[
            IslandDocument.from_objects(
                island,
                island.gpu,
                gpu=island.gpu.name,
                compute_flop_per_s=island.gpu.peak_flop_per_s(precision.compute),
                usable_memory_bytes=usable,
                planned_memory_bytes=planned,
                intra_link=island.intra.name,
                intra_bytes_per_s=island.intra.bytes_per_s,
            )
            for island, (usable, planned) in zip(cut, memory, strict=True)
        ],
        assumed=[
            f"{group.name}: {label}"
            for group in cluster.groups
            for label in group.node.labels
            if label.startswith(ASSUMED)
        ],
    )
