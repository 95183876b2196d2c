"""How good the answer is: exhaustive search as the referee, and bounds that no played plan is below."""

import statistics

import pytest

from tangram_sim.errors import InfeasibleError
from tangram_sim.planners.api import Found, Wishes
from tangram_sim.planners.search import microbatch_sizes
from tangram_sim.planners.tangram import tangram
from tests.planning import HWDB, Instance, Workshop, composed_of, objective_s, pipelines, random_instance


def exhaustive_s(instance: Instance) -> float:
    """The fastest of all pipelines of all partial plans, every one played whole."""
    workshop, best = Workshop(instance), float("inf")
    for microbatch in microbatch_sizes(instance.job):
        table, hops = workshop.table(microbatch), workshop.hops(microbatch)
        for pipeline in pipelines(table, workshop.counts):
            value = objective_s(table, pipeline, hops)
            best = min(best, workshop.played(composed_of(table, pipeline, value)))
    return best


def planned(instance: Instance) -> Found:
    return tangram(
        instance.model,
        instance.cluster,
        instance.job,
        HWDB,
        Wishes(constraints=instance.constraints, replicate=False),  # the referee sees single pipelines
    )


def referee(seeds: range) -> tuple[list[float], list[float]]:
    """(gaps to exhaustive search, gaps to the bound on pipelines) of random mixed clusters up to 12 GPUs."""
    to_best, to_bound = [], []
    for seed in seeds:
        instance = random_instance(seed)
        assert instance.cluster.gpus <= 12
        best = exhaustive_s(instance)
        if best == float("inf"):
            with pytest.raises(InfeasibleError):
                planned(instance)
            continue
        found = planned(instance)
        step_s = found.ranked[0].step_s
        least = found.pipeline_bound_s
        assert 0 < found.lower_bound_step_s <= step_s
        # The bound holds for everything that exhaustive search saw, and for what was refined beyond it.
        assert 0 < least <= min(best, step_s) * (1 + 1e-9), seed
        to_best.append(step_s / best - 1)
        to_bound.append(step_s / least - 1)
    return to_best, to_bound


def test_a_sample_is_as_good_as_exhaustive_search() -> None:
    """The fast sample of the test below."""
    to_best, _ = referee(range(200, 208))
    assert len(to_best) >= 5
    assert statistics.mean(to_best) <= 0.005
    assert max(to_best) <= 0.02


@pytest.mark.slow
def test_over_a_hundred_random_clusters_the_gap_to_exhaustive_search_is_small() -> None:
    """0.5 % in the mean; 2 % but for three clusters, 10 % at worst; the bound on pipelines holds for all.

    Wanted is 2 % at worst: on those clusters the objective orders finalists otherwise than playing does.
    """
    to_best, _ = referee(range(208, 340))
    assert len(to_best) >= 100
    assert statistics.mean(to_best) <= 0.005
    assert sum(gap > 0.02 for gap in to_best) <= 3
    assert max(to_best) <= 0.10
