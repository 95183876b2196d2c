"""Replay: from plan objects to step times, lowering included, every cache of the package cold."""

import random
import time

from tangram_sim.clusters import Cluster, NodeGroup
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.layouts import Layout
from tangram_sim.models import Model
from tangram_sim.training.job import Job
from tangram_sim.training.plan import LayerLayout, Part, Pipeline, Plan, Stage
from tangram_sim.training.schedules.step import play_steps, templates
from tangram_sim.training.step.lowered import Lowering

PLANS, DEPTH, MICROBATCHES, GPUS = 1000, 8, 64, 8
KINDS = {"one kind": ("DGX-A100-80GB",), "two kinds": ("DGX-A100-80GB", "DGX-H100")}
LAYOUTS = tuple(Layout(tp=tp, dp=GPUS // tp, sequence_parallel=tp > 1) for tp in (1, 2, 4, 8))


def plans_per_minute(kinds: str, decisions: str) -> dict[str, float]:
    """Distinct plans a minute on eight nodes; `decisions` that differ: "cuts", or "cuts and layouts"."""
    hwdb = Hwdb.load()
    layouts = decisions == "cuts and layouts"
    plans = distinct_plans(load_model("gpt3-6.7b"), hwdb, KINDS[kinds], PLANS, vary_layouts=layouts)
    # Another model loads the compiled code, so that nothing is remembered of this one.
    step_times(distinct_plans(load_model("gpt3-1.3b"), hwdb, KINDS[kinds], 1, vary_layouts=layouts), hwdb)
    templates.clear()
    begin = time.process_time()
    found = step_times(plans, hwdb)
    seconds = time.process_time() - begin
    return {"plans_per_minute": len(found) / seconds * 60, "distinct_step_times": float(len(set(found)))}


def step_times(plans: list[Plan], hwdb: Hwdb) -> list[float]:
    """Seconds of one step of every plan."""
    lowering = Lowering.of(plans[0], hwdb)
    found = []
    for plan in plans:
        step = lowering.lower(plan.pipelines[0])
        found.append(float(play_steps(step.template, step.template.durations(step.times)[None])[0]))
    return found


def distinct_plans(
    model: Model, hwdb: Hwdb, kinds: tuple[str, ...], count: int, *, vary_layouts: bool
) -> list[Plan]:
    """Plans of `model` on eight nodes, one stage per node, no two alike; seeded."""
    chance = random.Random(0)
    share = DEPTH // len(kinds)
    groups = tuple(NodeGroup(f"g{place}", share, hwdb.node(kind)) for place, kind in enumerate(kinds))
    cluster = Cluster("eight-nodes", groups)
    job = Job(global_batch=GPUS * MICROBATCHES, dtype="bf16")
    decisions = dict[tuple[tuple[int, ...], tuple[Layout, ...]], None]()
    while len(decisions) < count:
        cuts = (0, *sorted(chance.sample(range(1, model.layers), DEPTH - 1)), model.layers)
        layouts = tuple(chance.choice(LAYOUTS) if vary_layouts else LAYOUTS[-1] for _ in range(DEPTH))
        decisions[cuts, layouts] = None
    return [_plan(model, cluster, job, cuts, layouts) for cuts, layouts in decisions]


def _plan(
    model: Model, cluster: Cluster, job: Job, cuts: tuple[int, ...], layouts: tuple[Layout, ...]
) -> Plan:
    stages = []
    for place, layout in enumerate(layouts):
        blocks = cuts[place], cuts[place + 1]
        ranks = tuple(range(place * GPUS, (place + 1) * GPUS))
        island = cluster.groups[cluster.node_group[place]].name
        part = Part(island, ranks, GPUS, (LayerLayout(blocks, layout),))
        stages.append(Stage((blocks,), place == 0, place == DEPTH - 1, (part,)))
    return Plan(model, cluster, job, (Pipeline(MICROBATCHES, GPUS, tuple(stages)),))
