"""What the shipped parallelizer answers: the Pareto set of all layouts, refusals with numbers."""

from dataclasses import astuple, replace

import numpy as np
import pytest

from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.layers.atoms import Slice
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.parallelizers.grid import Grid
from tangram_sim.parallelizers.layouts import layouts
from tangram_sim.training.job import Job
from tangram_sim.training.plan import UNLIMITED, PartialPlan
from tests.contracts.requests import REQUESTS, island, request


@pytest.mark.parametrize("name", ["six GPUs", "few atoms"])
def test_the_answer_is_the_pareto_set_of_all_layouts(name):
    """Brute force: price every layout alone, drop what another beats in everything, of equals keep one."""
    asked = REQUESTS[name]
    grid = Grid()
    answer = grid.parallelize(asked)
    every = {}
    for layout in layouts(asked.slice.model, asked.island.gpus, (1, 2, 3, 4, 6)):
        try:
            every[layout] = grid.price(asked, layout)
        except InfeasibleError:
            continue

    def costs(partial: PartialPlan) -> tuple[float, ...]:
        stages, hop = partial.stages, partial.hop_s
        forward = sum(stage.forward_s for stage in stages) + hop * (len(stages) - 1)
        closing = max(  # each stage's tail ends after everything before and behind it
            sum(stage.forward_s + hop for stage in stages[:place])
            + sum(stage.forward_s + stage.backward_s for stage in stages[place:])
            + 2 * hop * (len(stages) - 1 - place)
            + stages[place].gradient_sync_s
            + stages[place].optimizer_s
            for place in range(len(stages))
        )
        return (partial.slowest_s, partial.latency_s, forward, closing, len(stages), -partial.stages_behind)

    feasible = {layout: costs(partial) for layout, partial in every.items() if partial.stages_behind >= 0}
    assert len(feasible) == len(answer.partials) + answer.dominated
    answered = {partial.layout for partial in answer.partials}
    best = set()
    for mine in feasible.values():
        beaten = any(
            other != mine
            and all(
                theirs <= ours * (1 + 1e-12) if ours >= 0 else theirs <= ours
                for theirs, ours in zip(other, mine, strict=True)
            )
            for other in feasible.values()
        )
        if not beaten:
            best.add(tuple(np.round(mine, 12)))
    assert {tuple(np.round(feasible[layout], 12)) for layout in answered} >= best
    for layout, mine in feasible.items():
        assert any(
            all(theirs <= ours + 1e-12 for theirs, ours in zip(feasible[other], mine, strict=True))
            for other in answered
        ), layout


def test_degrees_are_not_powers_of_two_only():
    """Six GPUs: 2 x 3 in every role, and three inner stages of two."""
    asked = replace(REQUESTS["six GPUs"], slice=Slice(load_model("gpt2"), 0, 14))
    grid = Grid()
    for layout in (
        Layout(tp=3, dp=2),
        Layout(tp=2, dp=3),
        Layout(dp=6),
        Layout(tp=6),
        Layout(dp=2, pp=3),
        Layout(tp=3, pp=2),
    ):
        if 1024 % layout.cp == 0:
            assert grid.price(asked, layout).layout == layout
    with pytest.raises(InfeasibleError, match="cp=3 does not divide"):
        grid.price(asked, Layout(cp=3, dp=2))


def test_the_largest_share_of_an_uneven_microbatch_sets_the_time():
    """7 sequences over 4 ranks take as long as 8, and longer than 4."""
    four, seven, eight = (
        Grid().price(request(atoms=(1, 9), microbatch=size), Layout(dp=4)).stages[0] for size in (4, 7, 8)
    )
    assert seven == eight
    assert four.forward_s < seven.forward_s
    assert four.activation_bytes == seven.activation_bytes / 2


def test_a_rank_without_a_sequence_is_refused_with_its_numbers():
    """dp = 4 on 3 sequences would leave a rank idle."""
    with pytest.raises(InfeasibleError, match=r"dp=4 .* 3 sequences"):
        Grid().price(request(microbatch=3), Layout(dp=4))


def test_inner_pipelines_stay_on_one_node():
    """Pipelines over nodes are the composition's: counted here too they would be counted twice."""
    item, two = (Grid().parallelize(request(where=island(nodes=nodes), atoms=(1, 9))) for nodes in (1, 2))
    assert any(partial.layout.pp > 1 for partial in item.partials)
    assert not any(partial.layout.pp > 1 for partial in two.partials)
    assert not any(rejection.layout.pp > 1 for rejection in two.rejected)


def test_an_inner_pipeline_is_stages_with_a_hop_between():
    """Cuts cover the slice, each inner stage is priced as a stage of its own on its share of the node."""
    asked = request(atoms=(1, 9))
    grid = Grid()
    partial = grid.price(asked, Layout(dp=2, pp=2))
    assert partial.cuts == (1, 5, 9)
    assert partial.hop_s > 0
    alone = grid.price(
        replace(asked, slice=Slice(asked.slice.model, 1, 5), island=asked.island.part(1, 2)), Layout(dp=2)
    )
    for stage in partial.stages:  # equal up to the rounding of prefix sums
        assert astuple(stage) == pytest.approx(astuple(alone.stages[0]), rel=1e-12)


def test_more_inner_stages_than_atoms_is_a_rejection_with_numbers():
    """Not a silent skip: four inner stages of two atoms are in the list, with the reason."""
    asked = REQUESTS["few atoms"]
    answer = Grid().parallelize(asked)
    reasons = {rejection.layout: rejection.reason for rejection in answer.rejected}
    assert reasons[Layout(pp=4)] == "pp=4 inner stages, but the slice has only 2 atoms to cut"
    with pytest.raises(InfeasibleError):
        Grid().price(asked, Layout(pp=4))


def test_memory_rejections_need_more_than_there_is():
    """Also for inner pipelines, whose front stages hold several microbatches."""
    rejected = [
        rejection for rejection in Grid().parallelize(REQUESTS["tight"]).rejected if rejection.needed_bytes
    ]
    assert {rejection.layout.pp for rejection in rejected} >= {1, 2, 4}
    for rejection in rejected:
        assert rejection.needed_bytes > rejection.capacity_bytes > 0
        assert "per GPU" in rejection.reason


def test_every_dimension_is_searched():
    """TP, DP, CP, EP, inner PP, ZeRO, recomputation and sequence parallelism all occur among the layouts."""
    asked = request("gshard-moe-2.4b", island("A100-SXM4-80GB", "NVLink3", 1, 8), (1, 5))
    grid = Grid()
    for layout in (
        Layout(tp=8, sequence_parallel=True),
        Layout(dp=8, ep=8),
        Layout(cp=8),
        Layout(dp=2, cp=2, tp=2, ep=4, zero_stage=3, recompute="full"),
        Layout(dp=4, pp=2, ep=2, zero_stage=2),
    ):
        assert grid.price(asked, layout).stages_behind == UNLIMITED


def test_equal_slices_cost_the_same_wherever_they_lie():
    """The composition asks once for equal signatures: nothing but the position may differ."""
    here, there = (Grid().parallelize(request(atoms=atoms)) for atoms in ((2, 6), (9, 13)))
    assert len(here.partials) == len(there.partials)
    for mine, other in zip(here.partials, there.partials, strict=True):
        assert mine.layout == other.layout
        assert mine.slowest_s == pytest.approx(other.slowest_s, rel=1e-12)
        assert [cut - 2 for cut in mine.cuts] == [cut - 9 for cut in other.cuts]


def test_one_grid_serves_many_questions_without_mixing_them():
    """Caches are keyed by all that matters: answers of one instance equal those of fresh ones."""
    grid = Grid()
    variants = [
        request(),
        request(microbatch=4),
        request(microbatches=2),
        request(job=Job(seq=512, dtype="fp16")),
        request(job=Job(seq=1024, dtype="fp16", optimizer="sgd")),
        request(where=island(gpus=2)),
        request(constraints=Constraints(fixed=(("tp", 1),))),
        replace(request(), hwdb=Hwdb.load()),
    ]
    for asked in [*variants, *variants[::-1]]:
        assert grid.parallelize(asked).partials == Grid().parallelize(asked).partials
