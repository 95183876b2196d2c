"""Which partial plans of the members of a joint island are put together."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

import tangram_sim as ts
from tangram_sim.planners.tangram.spanning.mixed import _choices, _step_down, _surpasses


def answer(name, tp, slowest_s, behind=0, tail_s=0.0, zero=0):
    return SimpleNamespace(
        name=name,
        layout=SimpleNamespace(tp=tp, zero_stage=zero),
        slowest_s=slowest_s,
        tail_s=tail_s,
        stages_behind=behind,
    )


def test_the_fastest_of_each_and_the_fastest_of_one_tensor_parallelism_are_tried():
    """Two passes: t2 takes 2 x 1.0 + 0.1, t1 2 x 1.1; nothing of the second member has tp 4."""
    first = [answer("t1", 1, 1.1), answer("t2", 2, 1.0, tail_s=0.1), answer("t4", 4, 1.5)]
    second = [answer("v1", 1, 0.9), answer("v1 slow", 1, 1.2), answer("v2", 2, 1.3)]
    found = [tuple(item.name for item in chosen) for chosen in _choices([first, second], 2, most=3)]
    assert found == [("t2", "v1"), ("t1", "v1"), ("t2", "v2")]


def test_parts_that_shard_their_state_alike_are_put_together():
    """The fastest of each do not; with tp 2 none do, and the fastest of each stand in."""
    first = [answer("t1 z1", 1, 1.0, zero=1), answer("t1 z0", 1, 1.1), answer("t2 z0", 2, 1.2)]
    second = [answer("v1 z0", 1, 0.9), answer("v1 z1", 1, 1.3, zero=1), answer("v2 z1", 2, 1.4, zero=1)]
    found = [tuple(item.name for item in chosen) for chosen in _choices([first, second], 1, most=3)]
    assert found == [("t1 z1", "v1 z0"), ("t1 z0", "v1 z0"), ("t1 z1", "v1 z1"), ("t2 z0", "v2 z1")]


def test_what_has_no_room_for_the_stages_behind_is_left_out():
    first = [answer("full", 1, 1.0, behind=0), answer("free", 1, 2.0, behind=3)]
    second = [answer("v", 1, 1.0, behind=3)]
    found = [tuple(item.name for item in chosen) for chosen in _choices([first, second], 1, most=3)]
    assert found == [("full", "v"), ("full", "v"), ("free", "v"), ("free", "v")]


def test_stages_behind_are_tried_in_powers_of_two_up_to_the_most_there_can_be():
    """Of a ladder of answers that fit with 0, 1, ... 20 stages behind each slower one is asked for once."""
    ladder = [answer(str(behind), 1, 1.0 + behind, behind=behind) for behind in range(21)]
    tried = [int(chosen[0].name) for chosen in _choices([ladder], 1, most=11)]
    assert list(dict.fromkeys(tried)) == [0, 1, 2, 4, 8, 11]
    assert [int(item.name) for (item,) in _choices([ladder], 1, most=0)] == [0, 0]


@given(st.integers(0, 1 << 40), st.integers(0, 200))
def test_a_level_asks_for_no_more_stages_behind_than_fit_or_can_be(behind: int, most: int) -> None:
    level = _step_down(behind, most)
    assert 0 <= level <= min(behind, most)
    assert 2 * level > behind or level == most or behind == 0


def test_a_plan_of_unlike_cuts_does_not_stand_for_one_of_like_cuts():
    """Its passes are as fast, but not what comes after them."""
    unlike, like = (
        SimpleNamespace(
            portions=[SimpleNamespace(layout=SimpleNamespace(tp=tp)) for tp in tps],
            slowest_s=1.0,
            stages_behind=0,
        )
        for tps in ((2, 1), (1, 1))
    )
    chosen_like = (answer("t1", 1, 1.1), answer("v1", 1, 0.9))
    chosen_unlike = (answer("t2", 2, 1.0), answer("v1", 1, 0.9))
    assert not _surpasses(unlike, chosen_like)
    assert _surpasses(unlike, chosen_unlike) and _surpasses(like, chosen_like)


def test_a_small_model_on_two_kinds_is_one_stage_of_like_cuts():
    """Parts that are the fastest alone, cut unlike, take longer together than the best pipeline (0.87 s)."""
    composed = ts.SearchOptions(interleave=False)  # a framework's interleaved layout is faster still
    found = ts.plan("gpt3-350m", "azure-c1-t4x4-v100x4", ts.Job(global_batch=32, seq=1024), wishes=composed)
    assert found.step_s < 0.8
    assert [(stage.gpu, stage.layers) for stage in found.document.stages] == [
        ("T4", (0, 24)),
        ("V100-PCIe-16GB", (0, 24)),
    ]
    assert len({stage.tp for stage in found.document.stages}) == 1
