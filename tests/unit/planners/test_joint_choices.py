"""Which partial plans of the members of a joint island are put together."""

from types import SimpleNamespace

import tangram_sim as ts
from tangram_sim.planners.tangram.spanning.mixed import _choices, _surpasses


def answer(name, tp, slowest_s, behind=0, tail_s=0.0):
    return SimpleNamespace(
        name=name, layout=SimpleNamespace(tp=tp), slowest_s=slowest_s, tail_s=tail_s, stages_behind=behind
    )


def test_the_fastest_of_each_and_the_fastest_of_one_tensor_parallelism_are_tried():
    """Two passes: t2 takes 2 x 1.0 + 0.1, t1 2 x 1.1; nothing of the second member has tp 4."""
    first = [answer("t1", 1, 1.1), answer("t2", 2, 1.0, tail_s=0.1), answer("t4", 4, 1.5)]
    second = [answer("v1", 1, 0.9), answer("v1 slow", 1, 1.2), answer("v2", 2, 1.3)]
    found = [tuple(one.name for one in chosen) for chosen in _choices([first, second], passes=2)]
    assert found == [("t2", "v1"), ("t1", "v1"), ("t2", "v2")]


def test_what_has_no_room_for_the_stages_behind_is_left_out():
    first = [answer("full", 1, 1.0, behind=0), answer("free", 1, 2.0, behind=3)]
    second = [answer("v", 1, 1.0, behind=3)]
    found = [tuple(one.name for one in chosen) for chosen in _choices([first, second], passes=1)]
    assert found == [("full", "v"), ("full", "v"), ("free", "v"), ("free", "v")]


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
    found = ts.plan("gpt3-350m", "azure-c1-t4x4-v100x4", ts.Job(global_batch=32, seq=1024))
    assert found.step_s < 0.8
    assert [(one.gpu, one.layers) for one in found.document.stages] == [
        ("T4", (0, 24)),
        ("V100-PCIe-16GB", (0, 24)),
    ]
    assert len({one.tp for one in found.document.stages}) == 1
