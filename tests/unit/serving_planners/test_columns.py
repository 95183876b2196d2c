"""Column generation against all columns, and pipelines priced together against one by one."""

from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.serving_problems import FAMILIES
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.serving.closed_form import Load
from tangram_sim.serving.outcome import Slo
from tangram_sim.serving_planners import columns
from tangram_sim.serving_planners.answer import Rental
from tangram_sim.serving_planners.columns import price_out
from tangram_sim.serving_planners.milp import solve
from tangram_sim.serving_planners.offers import GpuOffer, OfferPricer, name_of
from tangram_sim.serving_planners.offers import pipelines as choices
from tangram_sim.serving_planners.problem import MAKESPAN, RentalProblem
from tangram_sim.serving_planners.problem_file import read_problem
from tests.unit.serving_planners.full_programs import fractional_bound

OFFERS = (GpuOffer("A100-SXM4-80GB", 1.75, 4, 4), GpuOffer("L40S", 0.9, 4, 4))


def drawn(family: str, seed: int) -> RentalProblem:
    """A random problem without configurations that pass a cap by themselves."""
    problem, _ = read_problem(FAMILIES[family](np.random.default_rng(seed)))
    assert isinstance(problem, RentalProblem)
    return problem.keeping(
        frozenset(
            c
            for c, configuration in enumerate(problem.configurations)
            if configuration.usd_per_hour <= problem.budget_usd_per_hour
            and all(n <= gpu.available for n, gpu in zip(configuration.gpus, problem.gpus, strict=True))
        )
    )


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["makespan", "cost", "two_models"]), st.integers(0, 10_000))
def test_the_relaxation_is_that_of_all_columns(family: str, seed: int) -> None:
    problem = drawn(family, seed)
    priced, whole = price_out(problem), fractional_bound(problem)
    if priced is None or np.isinf(whole):  # nothing serves everything: there is nothing to bound
        return
    assert priced.bound == pytest.approx(whole, rel=1e-6)
    # Never on the wrong side: a bound is what no plan passes.
    over = priced.bound / whole if problem.objective == MAKESPAN else whole / priced.bound
    assert over >= 1 - 1e-9


@pytest.mark.parametrize(("family", "seed"), [("makespan", 3), ("makespan", 8), ("cost", 4), ("cost", 11)])
def test_generated_columns_give_the_optimum_of_all(family: str, seed: int) -> None:
    problem = drawn(family, seed)
    whole = solve(problem, time_limit_s=20)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(columns, "MANY", 2)
        few = solve(problem, time_limit_s=20)
    assert isinstance(whole, Rental) == isinstance(few, Rental)
    if isinstance(whole, Rental) and isinstance(few, Rental) and whole.optimal:
        assert few.value == pytest.approx(whole.value, rel=1e-6)
        assert few.bound <= whole.value * (1 + 1e-9)


def test_what_is_left_out_is_worse_by_what_is_said() -> None:
    """A plan that must take a whole replica of a column is worse than the bound by `worse` of it at least."""
    problem = drawn("makespan", 5)
    priced = price_out(problem)
    assert priced is not None
    for c in np.argsort(-priced.worse)[:3]:
        if np.isfinite(priced.worse[c]):
            assert fractional_bound(problem, least={int(c): 1}) <= priced.bound - priced.worse[c] + 1e-9


@pytest.mark.parametrize("slo", [Slo(), Slo(ttft_s=2.0, tpot_s=0.08)])
def test_pipelines_priced_together_are_as_priced_alone(slo: Slo) -> None:
    loads = Load.of(np.array([2455.0, 496.0]), np.array([510.0, 18.0]))
    together, alone = (
        OfferPricer(load_model("llama3-8b"), Hwdb.load(), "vllm", "bf16", loads, slo) for _ in range(2)
    )
    single = [(offer.name, tp) for offer in OFFERS for tp in (1, 4)]
    asked = [
        [(kind, tp, 10 if place else 32 - 10 * (depth - 1)) for place, (kind, tp) in enumerate(chosen)]
        for depth in (1, 2, 3)
        for chosen in combinations_with_replacement(single, depth)
    ]
    found = {configuration.name: configuration for configuration in together.priced_together(asked)}
    for stages in asked[::5]:
        item = alone.priced(stages)
        assert (item is None) == (name_of(stages) not in found)
        if item is not None:
            assert found[item.name].rps == pytest.approx(item.rps, rel=1e-12)
            assert found[item.name].gpus == item.gpus


def test_choices_stay_within_what_is_there() -> None:
    pricer = OfferPricer(load_model("llama3-8b"), Hwdb.load(), "vllm", "bf16", Load.of(500.0, 50.0), Slo())
    found = choices(pricer, OFFERS)
    assert len({name_of(item) for item in found}) == len(found)
    uneven = [stages for stages in found if len({kind for kind, _, _ in stages}) == 2]
    assert any(len({layers for _, _, layers in stages}) > 1 for stages in uneven)
    assert all(len({tp for _, tp, _ in stages}) == 1 for stages in found)  # engines start no others
    for stages in found:
        assert sum(layers for _, _, layers in stages) == 32
        for offer in OFFERS:
            assert sum(tp for kind, tp, _ in stages if kind == offer.name) <= offer.available


def test_many_short_outputs_are_bound_by_their_prompts() -> None:
    """Prompts of a step fill the GPU: more of them a second than its peak computes are not promised."""
    loads = Load.of(np.array([496.0]), np.array([18.0]))
    pricer = OfferPricer(load_model("llama3-8b"), Hwdb.load(), "vllm", "bf16", loads, Slo())
    stages = [("A100-SXM4-80GB", 1, 11), ("A100-SXM4-80GB", 1, 11), ("A100-SXM4-80GB", 1, 10)]
    item = pricer.priced(stages)
    assert item is not None
    flop = 2 * 7e9 * 496 * item.rps[0]
    assert flop < 3 * 312e12
