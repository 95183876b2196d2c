"""The testbed's suite of slow ranks: every cut is predicted, orders are judged as measured, requests
differ by rank.
"""

import pytest

pytest.importorskip("torch", reason="real runs need the [validate] extra")

from tangram_validate.testbed.runner import RunRequest
from tangram_validate.testbed.scenario import load_scenario
from tangram_validate.testbed.stragglers import (
    SCENARIO,
    SLOW_RANK,
    Case,
    Held,
    _by_share,
    _cuts,
    _speeds,
    order_is_right,
)

from tangram_sim.hwdb import Hwdb, cluster_from_dict


def held(name: str, predicted: float, measured: float, factor: float = 2.0) -> Held:
    return Held(Case("g", name, factor, predicted, ()), measured, 0.0, predicted, measured)


def test_every_cut_is_there_once() -> None:
    cuts = list(_cuts(8, 4))
    assert len(cuts) == len(set(cuts)) == 35  # 7 over 3
    assert all(sum(cut) == 8 and min(cut) >= 1 for cut in cuts)


def test_an_order_is_right_if_what_is_told_apart_is_predicted_so() -> None:
    assert order_is_right([held("a", 1.0, 1.0), held("b", 1.2, 1.3)])
    assert order_is_right([held("a", 1.1, 1.0), held("b", 1.0, 1.02)])  # a tie as measured
    assert not order_is_right([held("a", 1.1, 1.0), held("b", 1.0, 1.3)])
    assert order_is_right([held("a", 1.1, 1.0), held("b", 1.0, 1.3, factor=3.0)])  # of another slowness


def test_only_the_slow_rank_is_slowed_and_each_rank_runs_its_own_share() -> None:
    scenario = load_scenario(SCENARIO)
    speeds = _speeds(scenario, 2.0)
    for rank, (slow, healthy) in enumerate(zip(speeds, scenario.speeds, strict=True)):
        assert slow.flop_per_s == healthy.flop_per_s / (2.0 if rank == SLOW_RANK else 1.0)
    work = scenario.facts.work[1]
    facts = scenario.cluster()
    for node in facts["nodes"]:
        node |= {"gpu": "T4", "intra_link": "PCIe3x16"}
    cluster = cluster_from_dict(facts, Hwdb.load(), "lab")
    model, job = scenario.model(work.model), scenario.job(work)
    requests: tuple[RunRequest, ...] = _by_share(scenario, model, cluster, job, (0, 2, 3), (6, 5, 5), 2.0)
    counts = [request.plan.pipelines[0].microbatches for request in requests]
    assert [counts[rank] for rank in (0, 2, 3)] == [6, 5, 5]
    assert all(request.plan.pipelines[0].stages[0].ranks == (0, 2, 3) for request in requests)
