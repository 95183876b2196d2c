"""Fleets, patterns and peers on small problems: plans, bounds and work counted, as recorded."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from tangram_sim.clusters import Cluster, Network, NodeGroup
from tangram_sim.errors import TangramError
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.tangram.engine import tangram
from tangram_sim.planners.tangram.fleet_budget import FLEETS
from tangram_sim.studies.comparison import plan_with
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan
from tests.planning import Instance, random_instance
from tests.records import HWDB, hold
from tests.unit.training.test_recorded_prices import cut, load_model

PEERS = ("uniform", "sailor", "metis", "flashflex", "hap")


def shape(plan: Plan) -> list[Any]:
    """Microbatches of every pipeline, and of every stage where it is, how it is laid out, what it holds."""
    return [
        [
            pipeline.microbatches,
            pipeline.microbatch,
            [
                [
                    stage.chunks,
                    [
                        [
                            part.island,
                            len(part.ranks),
                            part.sequences_per_microbatch,
                            str(part.layouts[0].layout),
                        ]
                        for part in stage.parts
                    ],
                ]
                for stage in pipeline.stages
            ],
        ]
        for pipeline in plan.pipelines
    ]


def searched(instance: Instance, wishes: SearchOptions) -> dict[str, Any]:
    """Whole searches: fleets beside single pipelines."""
    found = tangram(
        instance.model,
        instance.cluster,
        instance.job,
        HWDB,
        replace(wishes, constraints=instance.constraints),
    )
    return {
        "counts": asdict(found.counts),
        "bounds": [found.lower_bound_step_s, found.pipeline_bound_s],
        "steps": [scored.step_s for scored in found.ranked],
        "shapes": [shape(scored.plan) for scored in found.ranked[:2]],
        "findings": sorted({str(finding.code) for finding in found.findings}),
    }


def large(first: str, second: str, nodes: int, batch: int) -> Instance:
    """Many nodes of two kinds and a model of few layers: planned as copies of patterns."""
    groups = NodeGroup("g0", nodes, HWDB.node(first)), NodeGroup("g1", nodes // 2, HWDB.node(second))
    job = Job(batch, 1024, "fp16", "adamw", "1f1b")
    cluster = Cluster("large", groups, Network(1.0, ()))
    few = Constraints(fixed=(("cp", 1), ("zero_stage", 1)), recompute=("none",), sequence_parallel=False)
    assert FLEETS["normal"].is_large([group.count for group in groups])
    return Instance(cut(load_model("opt-350m"), 4), cluster, job, few)


def compared(seed: int, planner: str) -> dict[str, Any]:
    """What a peer answers, or why it has no answer."""
    instance = random_instance(seed, 3, HWDB)
    try:
        found = plan_with(planner, instance.model, instance.cluster, instance.job, hwdb=HWDB)
    except TangramError as error:
        return {"reason": type(error).__name__}
    document = found.document
    return {
        "step": [document.step_s, document.gpus_used],
        "parts": [
            [
                [
                    pipeline.microbatches,
                    pipeline.microbatch,
                    *(part.ranks for stage in pipeline.stages for part in stage.parts),
                ]
                for pipeline in document.pipelines
            ],
            [
                str(part.layouts)
                for pipeline in document.pipelines
                for stage in pipeline.stages
                for part in stage.parts
            ],
        ],
    }


def fleets() -> dict[str, Callable[[], dict[str, Any]]]:
    """Every case by name."""
    cases: dict[str, Callable[[], dict[str, Any]]] = {}
    wishes = SearchOptions(top=3)
    for seed, nodes in ((14, 6), (21, 5), (38, 4)):
        cases[f"fleet {seed}, {nodes} nodes"] = (
            lambda a=seed, b=nodes: searched(random_instance(a, b, HWDB), wishes)  # type: ignore[misc]
        )
    for name, asked in {
        "patterns, A100 and V100": ("DGX-A100-80GB", "p3.8xlarge", 17, 250),
    }.items():
        cases[name] = lambda asked=asked: searched(large(*asked), wishes)  # type: ignore[misc]
    for seed in (14, 21):
        for planner in PEERS:
            cases[f"{planner} {seed}"] = lambda a=seed, b=planner: compared(a, b)  # type: ignore[misc]
    return cases


CASES = fleets()


@pytest.mark.parametrize("name", CASES)
def test_fleets_are_those_recorded(name: str) -> None:
    hold("fleets", name, CASES[name]())
