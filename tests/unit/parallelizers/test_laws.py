"""Laws of layouts as values: who breaks one is told so, and what is advised keeps it."""

from collections.abc import Callable

import pytest

from tangram_sim.hwdb import load_model
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.laws import (
    BrokenLaw,
    context_law,
    degree_laws,
    expert_law,
    first_broken,
    sequence_law,
    share_law,
    tensor_law,
)
from tangram_sim.parallelizers.layouts import divisors, layouts

DENSE, MIXTRAL = load_model("gpt3-6.7b"), load_model("mixtral-8x7b")


@pytest.mark.parametrize(
    ("law", "kept"),
    [
        (lambda degree: tensor_law(DENSE, degree), divisors(32)),
        (lambda degree: context_law(36, degree), divisors(36)),
        (lambda degree: expert_law(MIXTRAL, degree), divisors(8)),
        (lambda degree: expert_law(MIXTRAL, degree, 12), (1, 2, 4)),
        (lambda degree: expert_law(DENSE, degree, 12), (1,)),
    ],
    ids=["tensor", "context", "experts", "experts over replicas", "no experts"],
)
def test_exactly_the_allowed_degrees_keep_a_law(
    law: Callable[[int], BrokenLaw | None], kept: tuple[int, ...]
) -> None:
    for degree in range(1, 50):
        broken = law(degree)
        assert (broken is None) == (degree in kept)
        if broken:
            assert (broken.value, broken.allowed) == (degree, kept)
            assert str(broken).startswith(f"{broken.name}={degree} ")


@pytest.mark.parametrize("model", [DENSE, MIXTRAL], ids=["dense", "experts"])
def test_layouts_that_are_enumerated_break_only_laws_of_heads_and_tokens(model) -> None:
    """Experts are drawn so that they suit; a layout that keeps all laws is one of those enumerated."""
    seen = set(layouts(model, 24, (1,)))
    for layout in seen:
        assert {broken.name for broken in degree_laws(model, 48, layout)} <= {"tp", "cp", "sequence_parallel"}
    for ep in range(1, 9):
        layout = Layout(tp=2, dp=6, cp=2, ep=ep)
        assert (layout in seen) == (not list(degree_laws(model, 48, layout)))


def test_the_first_law_broken_is_named_and_shares_come_before_recomputation() -> None:
    def first(layout: Layout, fused: bool = True) -> str:
        return str(first_broken(DENSE, 2048, layout, 4, fused))

    assert first(Layout(tp=3, dp=8)) == "tp=3 does not divide the 32 attention heads of gpt3-6.7b"
    assert first(Layout(dp=8, recompute="selective")).startswith("dp=8 ranks share a microbatch of 4")
    assert first(Layout(dp=4, recompute="selective")).startswith("recompute=selective saves nothing")
    assert first(Layout(dp=4, recompute="selective"), fused=False) == "None"
    assert share_law(4, 4) is None


def test_advice_lists_at_most_ten_values() -> None:
    broken = context_law(2**14, 3)
    assert broken and broken.advice == "; give one of 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, ..."
    assert share_law(8, 4).advice == ""


def test_sequence_parallelism_spreads_the_tokens_of_a_rank() -> None:
    assert [tp for tp in range(1, 20) if not sequence_law(48, tp, 4)] == list(divisors(12))
    broken = sequence_law(48, 5, 4)
    assert str(broken) == "sequence_parallel=True wants tp=5 to divide the 12 tokens of a rank"
