"""Pipelines side by side and pruning policies: what they may change, and what they never may."""

import random
from dataclasses import replace
from functools import cache

import pytest
from typer.testing import CliRunner

from tangram_sim.cli.main import app
from tangram_sim.clusters import Cluster, Network, Node, NodeGroup
from tangram_sim.errors import InfeasibleError
from tangram_sim.models import Attention, Block, FeedForward, Model
from tangram_sim.placement.islands import find_islands
from tangram_sim.planners.api import POLICIES, Found, SearchOptions
from tangram_sim.planners.tangram.bound import WorkBound
from tangram_sim.planners.tangram.engine import tangram
from tangram_sim.planners.tangram.findings import SIDE_BY_SIDE, WINDOW
from tangram_sim.planners.tangram.fleets.replication import Built, share_passes
from tangram_sim.sim import contention
from tangram_sim.studies.ablation import COLUMNS, ablation, cases, table
from tangram_sim.training.job import Job
from tangram_sim.training.step.side_by_side import price_plan
from tests.planning import HWDB, Instance, random_instance


def coarse_instance(seed: int) -> Instance:
    """Two or three unlike GPUs, nodes of one or two, slow NICs, and a model of few large atoms."""
    rng = random.Random(seed)
    kinds = rng.sample(("T4", "RTX-3090", "V100-PCIe-16GB", "V100-SXM2-32GB"), rng.choice((2, 3)))
    groups = [
        NodeGroup(
            f"g{index}",
            rng.choice((1, 2)),
            Node(HWDB.gpu(name), rng.choice((1, 2)), HWDB.link("PCIe3x16"), rng.choice((3e9, 6e9))),
        )
        for index, name in enumerate(kinds)
    ]
    hidden = rng.choice((1024, 2048))
    width = FeedForward(4 * hidden, gated=False, bias=True)
    block = Block(Attention(16, 16, hidden // 16, hidden // 16), width, norm_bias=True)
    model = Model("coarse", "gpt2", hidden, 8192, (block,) * rng.randint(2, 4), tied=False)
    job = Job(rng.choice((64, 96)), 1024, "fp16", "adamw", "1f1b")
    return Instance(
        model, Cluster(f"coarse-{seed}", tuple(groups), Network()), job, SearchOptions().constraints
    )


def planned(instance: Instance, **wishes: object) -> Found:
    asked = SearchOptions(constraints=instance.constraints, **wishes)  # type: ignore[arg-type]  # named by the test
    return tangram(instance.model, instance.cluster, instance.job, HWDB, asked)


@cache
def pairs(kind: str) -> list[tuple[Found, Found]]:
    """(one pipeline, pipelines side by side allowed) on random instances, stages on one island each."""
    make = coarse_instance if kind == "coarse" else random_instance
    found = []
    for seed in (7, 13, 15, 20) if kind == "coarse" else (1, 4, 6, 7, 8):
        try:
            result = planned(make(seed), replicate=False)
        except InfeasibleError:
            continue
        found.append((result, planned(make(seed), spanning=False)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["coarse", "random"])
def test_never_worse_than_one_pipeline(kind: str) -> None:
    """Whatever is tried beside it, the single pipeline stays a candidate."""
    assert len(pairs(kind)) >= 3
    for result, several in pairs(kind):
        assert several.ranked[0].step_s <= result.ranked[0].step_s
        if len(several.ranked[0].plan.pipelines) == 1:
            assert several.ranked[0].plan.pipelines == result.ranked[0].plan.pipelines


@pytest.mark.slow
def test_side_by_side_wins_where_atoms_are_few() -> None:
    """Few large atoms balance badly over unlike GPUs, shares of a batch well: 5 % and more when played."""
    gains = []
    for result, several in pairs("coarse"):
        plan, step_s = several.ranked[0].plan, several.ranked[0].step_s
        if len(plan.pipelines) == 1:
            continue
        lowered = price_plan(plan, HWDB)  # played anew, from nothing but the decisions
        assert lowered.fits()
        assert contention.play(lowered.graph()).makespan_s == pytest.approx(step_s, rel=1e-9)
        assert sum(each.microbatches * each.microbatch for each in plan.pipelines) == plan.job.global_batch
        assert SIDE_BY_SIDE.among(several.findings)
        gains.append(1 - step_s / result.ranked[0].step_s)
    assert max(gains) >= 0.05


def test_passes_go_where_they_end_first() -> None:
    """Greedy equals brute force over all ways to share the passes of two and three pipelines."""
    rng = random.Random(3)
    for _ in range(50):
        pipelines = [Built((), rng.uniform(1, 5), rng.uniform(0.1, 2)) for _ in range(rng.choice((2, 3)))]
        passes = rng.randint(3, 12)
        shares = share_passes(pipelines, passes)
        assert sum(shares) == passes
        mine = max(pipeline.step_s(share) for pipeline, share in zip(pipelines, shares, strict=True))
        every = [
            (first, second, passes - first - second)[: len(pipelines)]
            for first in range(1, passes)
            for second in (range(1, passes - first) if len(pipelines) == 3 else (passes - first,))
        ]
        best = min(
            max(pipeline.step_s(share) for pipeline, share in zip(pipelines, way, strict=True))
            for way in every
        )
        assert mine == pytest.approx(best)


def test_an_order_or_whole_islands_mean_one_pipeline() -> None:
    """--order and --whole-islands say what the pipeline is; nothing is put beside it."""
    instance = coarse_instance(7)
    names = tuple(island.name for island in find_islands(instance.cluster, "fp16", hwdb=HWDB))
    for wishes in ({"order": names}, {"sub_islands": False}):
        assert len(planned(instance, **wishes).ranked[0].plan.pipelines) == 1


@pytest.mark.parametrize("seed", [4, 6])
def test_policies_never_change_the_plan(seed: int) -> None:
    """All, none, and all but one: the same step; every policy only spares questions."""
    instance = random_instance(seed)
    everything = planned(instance, replicate=False)
    nothing = planned(instance, replicate=False, policies=())
    assert nothing.counts.asked >= everything.counts.asked
    assert nothing.counts.redundant == nothing.counts.imbalanced == 0
    for policy in POLICIES:
        rest = tuple(item for item in POLICIES if item != policy)
        found = planned(instance, replicate=False, policies=rest)
        assert found.ranked[0].step_s == pytest.approx(everything.ranked[0].step_s, rel=1e-9)
        assert everything.counts.asked <= found.counts.asked <= nothing.counts.asked
    assert nothing.ranked[0].step_s == pytest.approx(everything.ranked[0].step_s, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_window_reports_what_it_may_lose(seed: int) -> None:
    """The loss found is never larger than the loss reported; wide windows lose nothing."""
    instance = random_instance(seed)
    try:
        free = planned(instance, replicate=False)
    except InfeasibleError:
        pytest.skip("nothing fits this instance")
    assert free.lost == 0
    wide = planned(instance, replicate=False, window=1e6)
    assert wide.ranked[0].step_s == free.ranked[0].step_s
    for window in (4.0, 1.5):
        try:
            found = planned(instance, replicate=False, window=window)
        except InfeasibleError as error:
            assert "`window=" in str(error)
            continue
        assert 1 - free.ranked[0].step_s / found.ranked[0].step_s <= found.lost + 1e-9
        assert WINDOW.among(found.findings)
        assert found.loads[0] >= 1 / window - 1e-9
        assert found.loads[1] <= window + 1e-9


def test_a_balanced_load_is_one() -> None:
    """On one island the whole model has load 1, a part of it its share."""
    instance = random_instance(0)
    islands = find_islands(instance.cluster, "fp16", hwdb=HWDB)[:1]
    bound = WorkBound(instance.model, instance.job, islands, HWDB)
    atoms = instance.model.layers + 2
    assert bound.load(0, atoms, 0, islands[0].gpus) == pytest.approx(1.0)
    parts = bound.load(0, 2, 0, islands[0].gpus) + bound.load(2, atoms, 0, islands[0].gpus)
    assert parts == pytest.approx(1.0)


@pytest.mark.slow
def test_the_ablation_has_a_row_for_every_case() -> None:
    """None to all, all but each, windows; the plan is the same wherever no window is fixed."""
    instance = random_instance(4)
    wishes = SearchOptions(constraints=replace(instance.constraints, recompute=("none",)))
    rows = ablation(instance.model, instance.cluster, instance.job, HWDB, wishes)
    assert [row.case for row in rows] == [name for name, _, _ in cases()]
    free = [row for row in rows if "window" not in row.case]
    assert len({round(row.step_s, 9) for row in free}) == 1
    assert free[0].counts.asked == max(row.counts.asked for row in rows)
    assert [len(cells) for cells in table(rows)] == [len(COLUMNS)] * len(rows)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--no-prune", "redundncy"], "redundancy"),
        (["--window", "0.5"], "number above 1"),
        (["--window", "wide"], "auto"),
        (["--ablation", "--json"], "drop --json"),
    ],
)
def test_bad_options_say_what_to_type(options: list[str], words: str) -> None:
    """Exit code 2 and the words, never a traceback."""
    result = CliRunner().invoke(app, ["plan", "gpt2", "azure-c1-t4x4-v100x4", *options])
    said = result.output + str(result.exception or "")
    assert result.exit_code != 0
    assert words in said
