"""The rank map: every decision of a plan, rank by rank, as JSON for the user's own program."""

import json
from collections.abc import Sequence

from pydantic import Field

from tangram_sim.clusters import Cluster
from tangram_sim.datafiles import parse_json
from tangram_sim.errors import BadInputError
from tangram_sim.layouts import Layout
from tangram_sim.studies.documents import Document, PipelineDocument
from tangram_sim.studies.planfile import pipeline_documents
from tangram_sim.training.plan import LayerLayout, Part, Pipeline, Plan, Stage

FILE = "rankmap.json"
FORMAT = "tangram-rankmap 1"


class RankDocument(Document):
    """One process: its GPU, what it holds, and its place in the groups of its part."""

    rank: int = Field(description="of the process group: stages in order, parts, then dp, cp, tp (fastest)")
    gpu: int = Field(description="of the cluster, numbered node by node in file order")
    node: int
    local_gpu: int = Field(description="GPU of that node")
    kind: str = Field(description="GPU kind")
    pipeline: int
    stage: int
    part: int
    chunks: list[tuple[int, int]] = Field(description="runs of transformer blocks [start, stop)")
    embedding: bool
    head: bool
    dp_rank: int = Field(description="of the first run of layers: its place in the degrees of its layout")
    cp_rank: int
    tp_rank: int
    sequences: int = Field(description="of each microbatch: its data-parallel share")


class RankMapDocument(Document):
    """`tangram export --to rankmap`."""

    format: str = FORMAT
    model: str
    cluster: str
    schedule: str
    global_batch: int
    seq: int
    world_size: int
    ranks: list[RankDocument]
    pipelines: list[PipelineDocument] = Field(description="the decisions themselves, as plan files hold them")


def gpus_in_order(plan: Plan) -> tuple[int, ...]:
    """The cluster's GPU index of every rank, in order of pipeline, stage, part and rank in the layout."""
    return tuple(rank for pipeline in plan.pipelines for stage in pipeline.stages for rank in stage.ranks)


def places_of(cluster: Cluster) -> list[tuple[int, int, str]]:
    """(node index, GPU index in that node, GPU kind) of every GPU of a cluster."""
    found = []
    for node, group in enumerate(cluster.node_group):
        kind = cluster.groups[group].node
        found += [(node, local, kind.gpu.name) for local in range(kind.gpus)]
    return found


def rank_map(plan: Plan) -> RankMapDocument:
    """The rank map of any plan."""
    places, ranks = places_of(plan.cluster), list[RankDocument]()
    for number, pipeline in enumerate(plan.pipelines):
        for place, stage in enumerate(pipeline.stages):
            for index, part in enumerate(stage.parts):
                layout = part.layouts[0].layout
                for at, gpu in enumerate(part.ranks):
                    node, local, kind = places[gpu]
                    data = at // (layout.tp * layout.cp)
                    ranks.append(
                        RankDocument(
                            rank=len(ranks),
                            gpu=gpu,
                            node=node,
                            local_gpu=local,
                            kind=kind,
                            pipeline=number,
                            stage=place,
                            part=index,
                            chunks=list(stage.chunks),
                            embedding=stage.embedding,
                            head=stage.head,
                            dp_rank=data,
                            cp_rank=at // layout.tp % layout.cp,
                            tp_rank=at % layout.tp,
                            sequences=_share(part.sequences_per_microbatch, layout.dp, data),
                        )
                    )
    return RankMapDocument(
        model=plan.model.name,
        cluster=plan.cluster.name,
        schedule=plan.job.schedule,
        global_batch=plan.job.global_batch,
        seq=plan.job.seq,
        world_size=len(ranks),
        ranks=ranks,
        pipelines=pipeline_documents(plan),
    )


def _share(sequences: int, degree: int, index: int) -> int:
    """The sequences of data-parallel rank `index`: split evenly, the remainder to the first ranks."""
    return sequences // degree + (index < sequences % degree)


def write(plan: Plan) -> str:
    """The JSON text of the rank map file."""
    return json.dumps(rank_map(plan).model_dump(mode="json"), indent=1) + "\n"


def read(text: str) -> tuple[Pipeline, ...]:
    """The pipelines of a rank map. Raises BadInputError for any other text."""
    found = RankMapDocument.read(parse_json(text, FILE), FILE)
    if found.format != FORMAT:
        raise BadInputError(f"{FILE}: format {found.format!r}; this tangram-sim reads {FORMAT!r}")
    return tuple(_pipeline(found.ranks, number, pipeline) for number, pipeline in enumerate(found.pipelines))


def _pipeline(ranks: Sequence[RankDocument], number: int, document: PipelineDocument) -> Pipeline:
    """One pipeline, from the entries of its ranks and the layouts in its document."""
    stages = []
    for place, stage in enumerate(document.stages):
        parts = []
        for index, part in enumerate(stage.parts):
            mine = [
                rank for rank in ranks if (rank.pipeline, rank.stage, rank.part) == (number, place, index)
            ]
            layouts = tuple(
                LayerLayout(
                    run.layers,
                    Layout(
                        **run.model_dump(exclude={"layers"}),
                    ),
                )
                for run in part.layouts
            )
            whole = sum(rank.sequences for rank in mine if rank.tp_rank == rank.cp_rank == 0)
            parts.append(Part(part.island, tuple(rank.gpu for rank in mine), whole, layouts))
        held = next(rank for rank in ranks if (rank.pipeline, rank.stage) == (number, place))
        stages.append(Stage(tuple(held.chunks), held.embedding, held.head, tuple(parts)))
    return Pipeline(document.microbatches, document.microbatch, tuple(stages))
