"""A plan whose queue grows when it is replayed: it leads with that, and counts as one that keeps nothing."""

from math import inf

import numpy as np
import pytest

from tangram_sim.cli.serving.plan import print_plan
from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.fleet_file import read_fleet
from tangram_sim.serving.outcome import Slo
from tangram_sim.serving.workload import Floats, plain
from tangram_sim.studies.serving_model_plan import _keeps
from tangram_sim.studies.serving_plan import PlayedPlanDocument, ServePlanDocument
from tangram_sim.studies.serving_simulation import simulate_service
from tests.commands import tangram


def verdict_of(arrival_s: Floats, tokens: int = 20, seats: int = 8) -> str:
    """What is said of equal requests of 100 + 20 tokens: .21 s alone, at most 33 a second on eight seats."""
    costs = {"step_s": 0.01, "prompt_s": 1e-4, "kv_blocks": 100_000}
    fleet = read_fleet({"replicas": [{"costs": costs, "max_sequences": seats}]}, Hwdb.load())
    work = plain(arrival_s, np.full(len(arrival_s), 100), np.full(len(arrival_s), tokens))
    return simulate_service(fleet, work, slo=Slo())[0].verdict


def verdict_at(rate: float) -> str:
    """What is said of 400 requests at a rate."""
    return verdict_of(np.sort(np.random.default_rng(3).uniform(0.0, 400 / rate, 400)))


def test_a_queue_grows_where_more_comes_than_is_served_and_not_where_arrivals_cluster() -> None:
    assert not any(verdict_at(rate) for rate in (2.0, 8.0, 15.0))
    assert all("cannot keep up" in verdict_at(rate) for rate in (60.0, 120.0))


def test_no_queue_grows_where_requests_are_only_longer_than_the_time_in_which_they_come() -> None:
    """All 400 are inside when the last one comes, and each takes as long as the first: five seconds."""
    arrival = np.linspace(0.0, 8.0, 400)
    assert not verdict_of(arrival, 500, 512)
    assert "cannot keep up" in verdict_of(arrival, 500, 8)


@pytest.mark.parametrize("tokens", [20, 100])
def test_a_cluster_at_the_end_is_no_growing_queue(tokens: int) -> None:
    """100 requests over 40 s, then 60 in half a second, which are finished faster than requests come."""
    arrival = np.append(np.linspace(0.0, 40.0, 100), 40.0 + np.linspace(0.005, 0.5, 60))
    assert not verdict_of(arrival, tokens)
    assert "cannot keep up" in verdict_of(arrival / 10.0, tokens)


def test_a_plan_whose_queue_grows_leads_with_it_and_keeps_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--workload", "800:200:1", "--rate", 3, "--slo", "ttft=2,tpot=0.05", "--requests", 100)
    found = ServePlanDocument.model_validate(
        tangram("serve", "plan", "llama3-8b", "H100x8:1", *asked, "--json").json
    )
    assert isinstance(found.replay, PlayedPlanDocument) and _keeps(found.replay, Slo(2.0, 0.05))
    late = found.replay.with_fields(verdict="cannot keep up: serves 2 of 3 requests/s")
    assert not _keeps(late, Slo(inf, inf))
    print_plan(found.with_fields(replay=late))
    assert "cannot keep up: serves 2 of 3" in capsys.readouterr().out.splitlines()[0]
