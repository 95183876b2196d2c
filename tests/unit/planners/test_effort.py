"""A search within its budget: beams and tolerances prove nothing false, and a deadline is heard."""

import os
import signal
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from tangram_sim.errors import UnknownNameError
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.budget import EFFORTS, SearchBudget, budget
from tangram_sim.planners.deadline import BY_HAND, Deadline
from tangram_sim.planners.tangram.composition.exact import Proof, find
from tangram_sim.planners.tangram.composition.labels import Look, PipelineTable, roads
from tangram_sim.planners.tangram.composition.ranking import RANKS
from tangram_sim.planners.tangram.engine import tangram
from tangram_sim.planners.tangram.fleet_budget import FLEETS
from tangram_sim.planners.tangram.fleets.fleet_bound import BOUNDS
from tangram_sim.planners.tangram.fleets.replication import BESIDE
from tangram_sim.planners.tangram.spanning.joint import JOINT
from tangram_sim.studies.launchable_layouts import LAUNCHES
from tests.planning import (
    HWDB,
    Workshop,
    composed_of,
    objective_s,
    pipelines,
    random_instance,
)

NARROW = SearchBudget(first_work=1, widths=(1, 2), proof_work=(1 << 40, 1 << 40))
TIGHT = replace(NARROW, proof_work=(1, 1), tolerances=(0.0, 0.01))


def problem(seed: int, microbatch: int) -> tuple[PipelineTable, list[float], dict[str, object]]:
    """(one table, the played steps of all its pipelines, how `find` is asked about it)."""
    instance = random_instance(seed)
    workshop = Workshop(instance)
    table, hops = workshop.table(microbatch), workshop.hops(microbatch)
    played = [
        workshop.played(composed_of(table, pipeline, objective_s(table, pipeline, hops)))
        for pipeline in pipelines(table, workshop.counts)
    ]
    size = instance.job.boundary_bytes(instance.model, microbatch)
    ways = roads(workshop.islands, instance.cluster, HWDB, size, hops)
    asked = {"table": table, "counts": workshop.counts, "ways": ways, "model": instance.model}
    asked |= {"job": instance.job, "limit_s": float("inf"), "best_s": float("inf")}
    return PipelineTable(table, workshop.counts, ways, instance.model, instance.job), played, asked


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(400, 408))
def test_a_beam_first_finds_what_a_look_at_everything_does(seed: int) -> None:
    """The proof below the beam's best pipeline is as good as one without a limit, and its bound holds."""
    _, played, asked = problem(seed, 2)
    whole, narrow = find(**asked), find(**asked, budget=NARROW)
    assert bool(narrow.pipelines) == bool(played)
    if played:
        assert 0 < narrow.bound_s <= min(played) * (1 + 1e-9)
        assert narrow.pipelines[0].objective_s <= whole.pipelines[0].objective_s * 1.005


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(400, 408))
def test_what_is_left_out_is_below_no_bound(seed: int) -> None:
    """Labels dropped for the width of a state or for a tolerance: the bound takes them into account."""
    table, played, _ = problem(seed, 2)
    if not played:
        return
    for width, tolerance in ((1, 0.0), (4, 0.0), (0, 0.02), (0, 0.2), (2, 0.05)):
        look = Look(float("inf"), 1 << 40, 1 << 20, width=width, tolerance_s=tolerance * min(played))
        found = table.below(look, Deadline())
        assert found is not None
        assert min([found.dropped_s, *found.bounds.tolist()]) <= min(played) * (1 + 1e-9)
        assert table.least_s <= min(played) * (1 + 1e-9)


def test_without_work_for_a_proof_there_is_a_plan_and_a_weaker_bound() -> None:
    """Seed 400 has pipelines: the beams find one, and the bound is that of what is still to come."""
    _, played, asked = problem(400, 2)
    proof: Proof = find(**asked, budget=TIGHT)
    assert proof.pipelines[0].objective_s >= min(played) * (1 - 1e-9)
    assert 0 < proof.bound_s <= find(**asked).bound_s


@pytest.mark.slow
def test_a_deadline_ends_the_composition() -> None:
    _, _, asked = problem(400, 2)
    assert find(**asked, deadline=Deadline(0.0)).pipelines == []


def test_one_interrupt_ends_the_search_and_a_second_the_program() -> None:
    with Deadline().hearing_interrupts() as deadline:
        assert not deadline.over()
        os.kill(os.getpid(), signal.SIGINT)
        assert deadline.over()
        assert deadline.findings() == [BY_HAND()]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_search_has_a_plan_that_says_so() -> None:
    """A uniform one, where nothing else was found before."""
    instance = random_instance(208)
    deadline = Deadline()
    deadline.interrupted = True
    asked = instance.model, instance.cluster, instance.job, HWDB, SearchOptions()
    found = tangram(*asked, deadline=deadline)
    assert found.ranked[0].step_s >= found.lower_bound_step_s
    assert found.stopped == [BY_HAND()]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [208, 211])
def test_every_effort_has_a_plan_and_more_is_no_worse(seed: int) -> None:
    instance = random_instance(seed)
    steps = []
    for effort in EFFORTS:
        wishes = SearchOptions(constraints=instance.constraints, effort=effort)
        asked = instance.model, instance.cluster, instance.job, HWDB, wishes
        again = [tangram(*asked).ranked[0] for _ in range(2)]
        assert again[0].plan == again[1].plan
        steps.append(again[0].step_s)
    assert steps == sorted(steps, reverse=True)


def test_an_unknown_effort_is_named() -> None:
    with pytest.raises(UnknownNameError, match="normal"):
        budget("norml")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(400, 408))
def test_no_pipeline_of_few_passes_is_played_below_what_they_take_at_least(seed: int) -> None:
    """Two passes leave stages idle: the bound knows, and is never above a played step."""
    instance = random_instance(seed)
    bound = Workshop(instance).bound
    for microbatch in (1, instance.job.global_batch // 2, instance.job.global_batch):
        _, played, _ = problem(seed, microbatch)
        assert bound.pipeline_s(microbatch) <= min(played, default=float("inf")) * (1 + 1e-9)
        assert bound.pipeline_s(microbatch) >= bound.microbatch_s(microbatch)


@pytest.mark.parametrize(
    ("spend", "least_less"),
    [
        *((EFFORTS, len(fields(SearchBudget)) / 2), (FLEETS, 2), (LAUNCHES, 1)),
        *((BOUNDS, 0), (RANKS, 4), (BESIDE, 4), (JOINT, 7)),
    ],
    ids=["search", "fleets", "launchable", "bound", "ranking", "side by side", "joint islands"],
)
def test_more_effort_looks_at_no_less_of_anything(spend: dict[str, Any], least_less: float) -> None:
    """Every field: quick is at most normal, normal at most exhaustive; and quick is less of some."""
    fewer_is_more = ("tolerances", "share")
    efforts = [spend[item] for item in ("quick", "normal", "exhaustive")]
    less = 0
    for field in fields(efforts[0]):
        given = [getattr(effort, field.name) for effort in efforts]
        if is_dataclass(given[0]) or field.name == "effort":
            continue  # a part, or its name
        ordered = [max(item) if isinstance(item, tuple) else item for item in given]
        assert ordered == sorted(ordered, reverse=field.name in fewer_is_more), field.name
        less += given[0] != given[1]
    assert less >= least_less


def test_a_look_at_some_islands_finds_its_limits_of_large_clusters_at_any_effort() -> None:
    """`SearchBudget.apart` is of effort quick whatever was asked: these must not differ by effort."""
    for name in ("states", "nodes", "most_told_apart"):
        assert len({getattr(spend, name) for spend in FLEETS.values()}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4, 6])
def test_quick_asks_no_more_and_plans_within_a_tenth(seed: int) -> None:
    instance = random_instance(seed)
    asked = instance.model, instance.cluster, instance.job, HWDB
    quick, normal = (tangram(*asked, SearchOptions(effort=item)) for item in ("quick", "normal"))
    assert quick.counts.asked <= normal.counts.asked
    assert normal.ranked[0].step_s <= quick.ranked[0].step_s <= 1.1 * normal.ranked[0].step_s
