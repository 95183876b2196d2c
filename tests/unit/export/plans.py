"""Plans to export, and what is read back of them."""

from dataclasses import replace

from hypothesis import strategies as st

from tangram_sim.clusters import Cluster, Node, NodeGroup
from tangram_sim.hwdb import Hwdb
from tangram_sim.layouts import Layout
from tangram_sim.models import Attention, Block, FeedForward, Model
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Pipeline, Plan, Share, pipeline_of_shares

HWDB = Hwdb.load()

NODE = Node(HWDB.gpu("A100-SXM4-40GB"), 4, HWDB.link("NVLink3"), 12.5e9)


def model_of(layers: int) -> Model:
    block = Block(Attention(8, 4, 64, 64), FeedForward(2048))
    return Model("tiny", "llama", 512, 8000, (block,) * layers, max_seq=4096)


def plan_of(pipelines: tuple[Pipeline, ...], layers: int, gpus: int, **job: object) -> Plan:
    nodes = -(-gpus // NODE.gpus)
    batch = sum(pipeline.microbatches * pipeline.microbatch for pipeline in pipelines)
    cluster = Cluster("lab", (NodeGroup("g0", nodes, NODE),))
    return Plan(model_of(layers), cluster, Job(batch, 1024, **{"dtype": "bf16", **job}), pipelines)  # type: ignore[arg-type]


@st.composite
def uniform_plans(draw: st.DrawFn, *, even: bool = False) -> Plan:
    """Plans with equal degrees everywhere: any cuts, any order of GPUs, sometimes pipelines side by side."""
    tp, cp, dp = (draw(st.sampled_from((1, 2))) for _ in range(3))
    depth = draw(st.integers(1, 3))
    chunks = draw(st.integers(1, 2)) if depth > 1 and not even else 1
    sizes = [draw(st.integers(1, 4))] * depth if even else [
        draw(st.integers(1, 4)) for _ in range(depth * chunks)
    ]  # fmt: skip
    copies = draw(st.integers(1, 2))
    cuts = [sum(sizes[:place]) for place in range(len(sizes) + 1)]
    per_stage = tp * cp * dp
    order = draw(st.permutations(range(copies * depth * per_stage)))
    layout = Layout(tp, dp, cp, 1, 1, draw(st.sampled_from((0, 3) if depth == 1 or not even else (0,))))
    pipelines = []
    for copy in range(copies):
        shares = []
        for place in range(depth):
            first = (copy * depth + place) * per_stage
            shares.append([Share("g0", tuple(order[first : first + per_stage]), 2 * dp, layout)])
        pipelines.append(pipeline_of_shares(2 * depth, cuts, shares, chunks))
    schedule = "interleaved" if chunks > 1 else "1f1b"
    return plan_of(tuple(pipelines), cuts[-1], len(order), schedule=schedule)


def without_context(plan: Plan) -> Plan:
    """The plan with its context parallelism made tensor parallelism: DeepSpeed has no such kind."""

    def changed(layout: Layout) -> Layout:
        return replace(layout, tp=layout.tp * layout.cp, cp=1)

    def of(pipeline: Pipeline) -> Pipeline:
        stages = tuple(
            replace(
                stage,
                parts=tuple(
                    replace(
                        part,
                        layouts=tuple(replace(run, layout=changed(run.layout)) for run in part.layouts),
                    )
                    for part in stage.parts
                ),
            )
            for stage in pipeline.stages
        )
        return replace(pipeline, stages=stages)

    return replace(plan, pipelines=tuple(map(of, plan.pipelines)))


def two_stages(
    first: Layout, second: Layout, sequences: int = 4, cuts: tuple[int, ...] = (0, 2, 4), **job
) -> Plan:
    ranks = tuple(range(first.gpus)), tuple(range(first.gpus, first.gpus + second.gpus))
    shares = [
        [Share("g0", mine, sequences, layout)] for mine, layout in zip(ranks, (first, second), strict=True)
    ]
    whole = pipeline_of_shares(4, cuts, shares)
    return plan_of((whole,), cuts[-1], sum(map(len, ranks)), **job)
