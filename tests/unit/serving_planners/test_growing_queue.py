"""A plan whose queue grows when it is replayed: it leads with that, and counts as one that keeps nothing."""

from math import inf

import numpy as np
import pytest

from tangram_sim.cli.serving.plan import print_plan
from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.fleet_file import read_fleet
from tangram_sim.serving.outcome import Slo
from tangram_sim.serving.workload import plain
from tangram_sim.studies.serving_model_plan import _keeps
from tangram_sim.studies.serving_plan import PlayedPlanDocument, ServePlanDocument
from tangram_sim.studies.serving_simulation import simulate_service
from tests.commands import tangram

FLEET = {"replicas": [{"costs": {"step_s": 0.01, "prompt_s": 1e-4, "kv_blocks": 10_000}, "max_sequences": 8}]}


def verdict_at(rate: float) -> str:
    """What is said of 400 equal requests at a rate: of 100 + 20 tokens, .21 s alone, at most 33 a second."""
    arrival = np.sort(np.random.default_rng(3).uniform(0.0, 400 / rate, 400))
    work = plain(arrival, np.full(400, 100), np.full(400, 20))
    return simulate_service(read_fleet(FLEET, Hwdb.load()), work, slo=Slo())[0].verdict


def test_a_queue_grows_where_more_comes_than_is_served_and_not_where_arrivals_cluster() -> None:
    assert not any(verdict_at(rate) for rate in (2.0, 8.0, 15.0))
    assert all("cannot keep up" in verdict_at(rate) for rate in (60.0, 120.0))


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
