"""State of plans: what survives which losses, what must move, on small cases by brute force."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.layouts import Layout
from tangram_sim.reliability.moves import assign, moves, transfer_seconds
from tangram_sim.reliability.state import (
    StateMap,
    copies,
    length,
    lost_with,
    merged,
    missing,
    ring_partners,
    state_of,
    with_partners,
)
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan, Share, pipeline_of_shares
from tests.commands import CLUSTER, EXPERTS, MODEL, tangram

JOB = Job(global_batch=8, seq=128, dtype="bf16")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("state")
    (path / "model.yaml").write_text(MODEL)
    (path / "experts.yaml").write_text(EXPERTS)
    (path / "cluster.yaml").write_text(CLUSTER)
    return path


def laid_out(
    folder: Path, cuts: Sequence[int], layout: Layout, pipelines: int = 1, name: str = "model"
) -> StateMap:
    """A plan of equal stages on one GPU per node, ranks in order."""
    model = load_model(str(folder / f"{name}.yaml"))
    cluster = load_cluster(str(folder / "cluster.yaml"), Hwdb.load())
    stages, size = len(cuts) - 1, layout.gpus
    found = []
    for number in range(pipelines):
        first = number * stages * size
        shares = [
            [Share("g0", tuple(range(first + s * size, first + (s + 1) * size)), 4, layout)]
            for s in range(stages)
        ]
        found.append(pipeline_of_shares(2, cuts, shares))
    return state_of(Plan(model, cluster, JOB, tuple(found)), range(1000))


def test_one_replica_always_needs_a_checkpoint(folder: Path) -> None:
    for layout in (Layout(), Layout(tp=2), Layout(tp=2, zero_stage=3)):
        state = laid_out(folder, (0, 2, 4), layout)
        assert all(lost_with(state, {node}) for node in state.nodes)
        assert set(copies(state).values()) == {1}


def test_two_replicas_survive_one_loss_without_zero_and_not_with_it(folder: Path) -> None:
    plain = laid_out(folder, (0, 2, 4), Layout(dp=2))
    assert not any(lost_with(plain, {node}) for node in plain.nodes)
    sharded = laid_out(folder, (0, 2, 4), Layout(dp=2, zero_stage=1))
    gone = lost_with(sharded, {0})
    assert {loss.section[0] for loss in gone} == {"optimizer"}
    everything = laid_out(folder, (0, 2, 4), Layout(dp=2, zero_stage=3))
    assert {loss.section[0] for loss in lost_with(everything, {0})} == {"optimizer", "weights"}
    assert copies(plain) == {("weights", "dense"): 2, ("optimizer", "dense"): 2}
    assert copies(sharded) == {("weights", "dense"): 2, ("optimizer", "dense"): 1}


def test_pipelines_side_by_side_are_copies_of_each_other(folder: Path) -> None:
    state = laid_out(folder, (0, 1, 4), Layout(zero_stage=1), pipelines=2)
    assert not any(lost_with(state, {node}) for node in state.nodes)
    assert lost_with(state, {0, 2})
    assert not lost_with(state, {0, 3})


def test_experts_are_lost_apart_from_the_rest(folder: Path) -> None:
    state = laid_out(folder, (0, 4), Layout(dp=2, ep=2), name="experts")
    gone = lost_with(state, {0})
    assert {loss.section[1] for loss in gone} == {"expert"}
    half = sum(state.atom_bytes["weights", "expert"]) / 2
    assert sum(loss.lost_bytes for loss in gone if loss.section[0] == "weights") == pytest.approx(half)


@pytest.mark.parametrize(
    ("layout", "pipelines"),
    [
        (Layout(dp=2, zero_stage=1), 1),
        (Layout(tp=2, dp=2), 1),
        (Layout(dp=2, zero_stage=3), 1),
        (Layout(), 3),
    ],
)
def test_survival_is_that_of_shards_counted_one_by_one(folder: Path, layout: Layout, pipelines: int) -> None:
    state = laid_out(folder, (0, 2, 4), layout, pipelines)
    for size in range(1, len(state.nodes)):
        for lost in combinations(state.nodes, size):
            assert bool(lost_with(state, set(lost))) == _shards_gone(state, set(lost))


def _shards_gone(state: StateMap, lost: set[int]) -> bool:
    """Cut every line into 24 shards and look for a live holder of each."""
    for holding in state.holdings:
        held = state.at(holding.section, holding.start, holding.start + 1)
        if state.run_bytes(holding.section, holding.start, holding.stop) <= 0:
            continue
        for shard in range(24):
            at = (shard + 0.5) / 24
            holders = {node for node, have in held.items() if any(a <= at < b for a, b in have)}
            if holders and holders <= lost:
                return True
    return False


def test_partner_copies_survive_two_losses_unless_a_pair_is_lost(folder: Path) -> None:
    state = laid_out(folder, (0, 1, 2, 3, 4), Layout())
    partners = ring_partners(state.nodes)
    held = with_partners(state, partners)
    assert not any(lost_with(held, {node}) for node in state.nodes)
    for a, b in combinations(state.nodes, 2):
        assert bool(lost_with(held, {a, b})) == (partners[a] == b or partners[b] == a)


LAYOUTS = st.builds(
    Layout, tp=st.sampled_from([1, 2, 4]), dp=st.sampled_from([1, 2]), zero_stage=st.sampled_from([0, 1, 3])
)
CUTS = st.sampled_from([(0, 4), (0, 2, 4), (0, 1, 4), (0, 1, 3, 4)])


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(old=LAYOUTS, new=LAYOUTS, old_cuts=CUTS, new_cuts=CUTS)
def test_moves_are_what_is_needed_less_what_is_held(
    folder: Path, old: Layout, new: Layout, old_cuts: tuple[int, ...], new_cuts: tuple[int, ...]
) -> None:
    before, after = laid_out(folder, old_cuts, old), laid_out(folder, new_cuts, new)
    found = moves(before, after)
    needed = sum(after.held_bytes().values())
    assert found.restored_bytes == 0
    assert found.fetched_bytes + found.kept_bytes == pytest.approx(needed)
    same = all(
        not missing(want, before.at(section, start, stop).get(node, ()))
        for section, start, stop in after.segments((before,))
        for node, want in after.at(section, start, stop).items()
    )
    assert (found.fetched_bytes < 1.0) == same
    assert all(source != target for source, target in found.between)


def test_nothing_moves_between_equal_plans_and_lost_state_comes_from_a_checkpoint(folder: Path) -> None:
    state = laid_out(folder, (0, 2, 4), Layout(tp=2))
    assert moves(state, state).fetched_bytes == 0
    found = moves(state, state, lost={0})
    assert found.restored_bytes == pytest.approx(state.held_bytes()[0])
    assert found.fetched_bytes == 0


def test_sources_are_spread_over_all_copies_and_share_nics(folder: Path) -> None:
    before = laid_out(folder, (0, 4), Layout(dp=2))
    after = laid_out(folder, (0, 4), Layout(dp=4))
    spread, through_one = moves(before, after), moves(before, after, spread=False)
    assert spread.fetched_bytes == pytest.approx(through_one.fetched_bytes)
    rate = 1e9
    seconds = [
        transfer_seconds(found, lambda a, b: rate, lambda node: rate) for found in (spread, through_one)
    ]
    whole = before.total_bytes / rate
    assert seconds == [pytest.approx(whole), pytest.approx(2 * whole)]


def test_places_are_taken_by_nodes_that_hold_most(folder: Path) -> None:
    before = laid_out(folder, (0, 1, 4), Layout())
    after = laid_out(folder, (0, 3, 4), Layout())
    live = [1, 5]
    kinds = {1: "a", 5: "a", -1: "a", -2: "a"}
    places = assign(before, after, kinds, live)
    assert places == {0: 1, 1: 5}
    with_one_kind = assign(before, after, {**kinds, -1: "b", 5: "b"}, live)
    assert with_one_kind == {0: 5, 1: 1}


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=6))
def test_unions_and_differences_of_intervals(pairs: list[tuple[int, int]]) -> None:
    some = merged((min(a, b) / 20, max(a, b) / 20) for a, b in pairs)
    rest = missing(((0.0, 1.0),), some)
    assert length(some) + length(rest) == pytest.approx(1.0)
    assert not missing(some, some)


def test_commands_on_lost_nodes(folder: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    model, cluster = folder / "model.yaml", folder / "cluster.yaml"
    assert tangram("estimate", model, cluster, "--dp", 12, "--global-batch", 24, "-o", plan).code == 0
    found = tangram("explain", plan, "--lost", "n0", "--json").json
    assert found["survives"]
    assert found["restored_from"] == "peers"
    assert found["copies"] == {"dense weights": 3, "dense optimizer": 3}
    assert tangram("explain", plan, "--lost", "n7").code == 2
    assert tangram("explain", plan, "--partner-copies").code == 2
    single = tmp_path / "single.json"
    assert tangram("estimate", model, cluster, "--pp", 3, "--dp", 4, "--zero", 1, "-o", single).code == 0
    lost = tangram("explain", single, "--lost", "n0", "--json").json
    assert lost["restored_from"] == "checkpoint"
    assert lost["gone_bytes"] == pytest.approx(sum(item["bytes"] for item in lost["gone"]))
    tiers = tmp_path / "tiers.yaml"
    tiers.write_text(
        "checkpoint:\n  - {name: near, block_s: 1, load_s: 2, survives: node}\n"
        "  - {name: far, block_s: 9, load_s: 60, survives: all}\n"
        "  - {name: own, block_s: 0, load_s: 0, survives: process}\n"
    )
    for nodes, left, by in (("n0", [True, True, False], "near"), ("n0,n1", [False, True, False], "far")):
        told = tangram("explain", single, "--lost", nodes, "--checkpoint", tiers, "--json").json
        assert [tier["left"] for tier in told["tiers"]] == left
        assert told["restored_by"] == by
    assert tangram("explain", single, "--checkpoint", tiers).code == 2
    copied = tangram("explain", single, "--lost", "n0", "--partner-copies", "--json").json
    assert copied["restored_from"] == "partner copies"


@pytest.mark.slow
def test_planning_without_nodes_says_what_moves(folder: Path) -> None:
    model, cluster = folder / "model.yaml", folder / "cluster.yaml"
    found = tangram("plan", model, cluster, "--global-batch", 12, "--without", "n1", "--json").json
    assert found["gpus_total"] == 8
    assert found["notes"][0].startswith("without n1: step")
    assert tangram("plan", model, cluster, "--without", "n0,n1,n2").code == 2
    assert "unknown node" in tangram("plan", model, cluster, "--without", "n8").err


def test_state_on_other_nodes_is_the_same_state(folder: Path) -> None:
    state = laid_out(folder, (0, 2, 4), Layout(dp=2))
    renamed = state.on({node: node + 10 for node in state.nodes})
    assert renamed.total_bytes == state.total_bytes
    assert list(renamed.held_bytes().values()) == list(state.held_bytes().values())
    assert replace(state) == state
