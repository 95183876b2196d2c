"""GenModel: the plan table counted from played rounds, the flips it predicts, and fits that find it again."""

from fractions import Fraction
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tangram_validate.collectives.genmodel_fit import fit_genmodel

from tangram_sim.cost.genmodel import (
    GenModelParameters,
    GenModelTerms,
    LocalPlan,
    candidates,
    colocated_ps,
    factorisations,
    halving_doubling,
    hierarchical_ps,
    reduce_broadcast,
    ring,
)
from tangram_sim.errors import BadInputError

S = 1.0


def best_plan(ranks: int, size: float, at: GenModelParameters) -> LocalPlan:
    """The fastest of all candidates on one switch; the first of equals."""
    return min(candidates(ranks), key=lambda plan: plan.terms(ranks, size).seconds(at))


def near(
    found: GenModelTerms, rounds: int, sent: Fraction, reduced: Fraction, memory: Fraction, senders: int
) -> None:
    assert found.rounds == rounds and found.senders == senders
    for value, exact in (
        (found.sent_bytes, sent),
        (found.reduced_bytes, reduced),
        (found.memory_bytes, memory),
    ):
        assert abs(value - float(exact)) <= 1e-12 * max(1.0, float(exact))


@pytest.mark.parametrize("n", range(2, 65))
def test_the_plan_table_is_exact(n: int) -> None:
    share = Fraction(n - 1, n)
    near(reduce_broadcast(n, S), 2, 2 * Fraction(n - 1), Fraction(n - 1), Fraction(n + 1), n - 1)
    near(colocated_ps(n, S), 2, 2 * share, share, Fraction(n + 1, n), n - 1)
    near(ring(n, S), 2 * (n - 1), 2 * share, share, 3 * share, 1)
    power = n.bit_length() - 1
    if n == 1 << power:
        near(halving_doubling(n, S), 2 * power, 2 * share, share, 3 * share, 1)
    else:
        near(halving_doubling(n, S), 2 * power + 2, 2 * share + 2, share + 1, 3 * share + 3, 1)
    for fan_ins in factorisations(n):
        memory = sum(
            (Fraction(fan_in + 1, prod(fan_ins[: index + 1])) for index, fan_in in enumerate(fan_ins)),
            Fraction(0),
        )
        near(hierarchical_ps(fan_ins, S), 2 * len(fan_ins), 2 * share, share, memory, max(fan_ins) - 1)


@pytest.mark.parametrize("fan_ins", [(5,), (7,), (2, 2, 2), (4, 2), (2, 4), (3, 5), (4, 4, 2), (6, 5), (64,)])
def test_staged_servers_play_out_as_the_table_counts(fan_ins: tuple[int, ...]) -> None:
    """An independent count: blocks really sent to owners, added, and left with one owner each."""
    n = prod(fan_ins)
    owned = [set(range(n)) for _ in range(n)]  # blocks whose partial sum a rank is to hold on
    sent, reduced, memory, stride, most = [0] * n, [0] * n, [0] * n, 1, 0
    for fan_in in fan_ins:
        for first in range(n):
            if first // stride % fan_in:
                continue
            group = [first + stride * member for member in range(fan_in)]
            blocks = sorted(owned[first])
            for place, member in enumerate(group):
                mine = {block for block in blocks if block // stride % fan_in == place}
                sent[member] += len(blocks) - len(mine)
                reduced[member] += (fan_in - 1) * len(mine)
                memory[member] += (fan_in + 1) * len(mine)
                owned[member] = mine
            most = max(most, fan_in - 1)
        stride *= fan_in
    assert sorted(block for blocks in owned for block in blocks) == list(range(n))
    found = hierarchical_ps(fan_ins, float(n))
    assert found.sent_bytes == pytest.approx(2 * max(sent), rel=1e-12)
    assert found.reduced_bytes == pytest.approx(max(reduced), rel=1e-12)
    assert found.memory_bytes == pytest.approx(max(memory), rel=1e-12)
    assert found.senders == most


def test_memory_optimality_is_the_single_stage() -> None:
    """D_min = (N+1) S / N; every further stage adds memory traffic, largest fan-in first adds least."""
    for n in (8, 12, 32, 60):
        least = colocated_ps(n, S).memory_bytes
        assert least == pytest.approx((n + 1) / n, rel=1e-12)
        for fan_ins in factorisations(n):
            memory = hierarchical_ps(fan_ins, S).memory_bytes
            assert memory > least
            assert memory >= hierarchical_ps(sorted(fan_ins, reverse=True), S).memory_bytes - 1e-12


def test_the_best_plan_flips_as_delta_and_epsilon_say() -> None:
    """Ring = CPS under (alpha ~ 0, beta, gamma); delta decides for CPS below w_t, epsilon for stages."""
    size, beta = 256e6, 1e-10
    both = [LocalPlan("ring"), LocalPlan("colocated-ps")]
    plain = GenModelParameters(0.0, beta, gamma_s_per_byte=1e-12)
    assert both[0].terms(8, size).seconds(plain) == pytest.approx(both[1].terms(8, size).seconds(plain))
    memory = GenModelParameters(0.0, beta, delta_s_per_byte=1e-11, epsilon_s_per_byte=1e-9, senders=9)
    assert str(best_plan(8, size, memory)) == "colocated-ps"  # N - 1 = 7 <= w_t
    assert (
        str(best_plan(32, size, memory)) == "hierarchical-ps 8x4"
    )  # fewest stages within w_t, largest first
    assert best_plan(31, size, memory).name == "ring"  # a prime: no stages, and 30 senders cost too much
    lax = GenModelParameters(0.0, beta, delta_s_per_byte=1e-11, epsilon_s_per_byte=1e-9, senders=40)
    assert str(best_plan(32, size, lax)) == "colocated-ps"
    strict = GenModelParameters(0.0, beta, epsilon_s_per_byte=1e-9, senders=1)
    assert best_plan(32, size, strict).terms(32, size).senders == 1


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(2, 64),
    size=st.floats(1.0, 1e10),
    alpha=st.floats(0, 1e-3),
    beta=st.floats(0, 1e-8),
    delta=st.floats(0, 1e-9),
    epsilon=st.floats(0, 1e-9),
    senders=st.integers(1, 64),
)
def test_the_best_plan_is_no_slower_than_any(
    n: int, size: float, alpha: float, beta: float, delta: float, epsilon: float, senders: int
) -> None:
    at = GenModelParameters(alpha, beta, 0.0, delta, epsilon, senders)
    best = best_plan(n, size, at).terms(n, size).seconds(at)
    assert all(best <= plan.terms(n, size).seconds(at) for plan in candidates(n))


def test_halves_of_an_all_reduce_add_up() -> None:
    for plan in candidates(12):
        whole = plan.terms(12, S)
        parts = whole.of("reduce_scatter"), whole.of("all_gather")
        at = GenModelParameters(1e-5, 1e-9, 1e-10, 1e-10)
        assert sum(part.seconds(at) for part in parts) == pytest.approx(whole.seconds(at))
        assert parts[1].memory_bytes == 0


def sweep() -> list[GenModelTerms]:
    """The fit procedure: co-located servers over growing fan-ins, ring and staged ones, several sizes."""
    found = []
    for size in (1e6, 8e6, 64e6):
        found += [colocated_ps(n, size) for n in range(2, 17)]
        found += [ring(n, size) for n in (2, 4, 8, 16)]
        found += [hierarchical_ps((4, 4), size), reduce_broadcast(8, size), halving_doubling(16, size)]
    return found


def test_a_fit_finds_the_parameters_again_and_predicts_held_out_ranks() -> None:
    true = GenModelParameters(2e-5, 8e-10, 0.0, 1e-10, 3e-11, 9)
    rng = np.random.default_rng(7)
    plans = sweep()
    noisy = [plan.seconds(true) * float(rng.normal(1, 0.02)) for plan in plans]
    fitted = fit_genmodel(plans, noisy)
    assert fitted.parameters.senders == 9
    assert fitted.parameters.beta_s_per_byte == pytest.approx(true.beta_s_per_byte, rel=0.1)
    assert fitted.parameters.epsilon_s_per_byte == pytest.approx(true.epsilon_s_per_byte, rel=0.1)
    assert fitted.median_error < 0.03
    for n in (18, 24, 32):
        for plan in (colocated_ps(n, 32e6), ring(n, 32e6)):
            assert plan.seconds(fitted.parameters) == pytest.approx(plan.seconds(true), rel=0.05)


def test_a_fit_says_what_its_points_cannot_tell() -> None:
    """With rings alone gamma and delta move together with beta, and no incast is ever seen."""
    plans = [ring(n, size) for n in (2, 4, 8) for size in (1e6, 1e7)]
    fitted = fit_genmodel(plans, [plan.seconds(GenModelParameters(1e-5, 1e-9)) for plan in plans])
    assert {"gamma_s_per_byte", "delta_s_per_byte", "epsilon_s_per_byte"} <= set(fitted.unidentified)
    assert fitted.median_error < 1e-6


def test_bad_figures_are_refused() -> None:
    with pytest.raises(BadInputError, match="alpha_s"):
        GenModelParameters(-1.0, 0.0)
    with pytest.raises(BadInputError, match="beta"):
        GenModelParameters(0.0, float("nan"))
    plans = sweep()
    with pytest.raises(BadInputError, match="one time per plan"):
        fit_genmodel(plans, [1.0])
    with pytest.raises(BadInputError, match="three"):
        fit_genmodel(plans[:2], [1.0, 1.0])
    with pytest.raises(BadInputError, match="above zero"):
        fit_genmodel(plans[:3], [1.0, 0.0, 1.0])
    with pytest.raises(BadInputError, match="finite number"):
        fit_genmodel(plans[:3], [1.0, float("nan"), 1.0])


def test_figures_that_are_left_out_cost_nothing() -> None:
    """A level without reductions, memory or incast costs what is said of it, and one rank costs nothing."""
    said = GenModelParameters(2e-6, 1e-9)
    assert said == GenModelParameters(2e-6, 1e-9, 0.0, 0.0, 0.0)
    for plan in (LocalPlan("ring"), LocalPlan("colocated-ps"), LocalPlan("reduce-broadcast")):
        alone = plan.terms(1, 1e6)
        assert alone == GenModelTerms(0, 0.0, 0.0, 0.0, 0)


def test_ways_to_write_a_number_as_a_product() -> None:
    assert set(factorisations(8)) == {(2, 4), (4, 2), (2, 2, 2)}
    assert set(factorisations(12)) == {(2, 6), (6, 2), (3, 4), (4, 3), (2, 2, 3), (2, 3, 2), (3, 2, 2)}
    assert factorisations(7) == ()
