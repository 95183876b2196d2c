"""Pages of a service: latencies, queue, memory and replicas of a run; replicas and rivals of a plan."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.hwdb import Hwdb
from tangram_sim.reports.charts import distributions
from tangram_sim.reports.services import over_time, plan_report, simulation_report
from tangram_sim.serving.fleet_file import read_fleet
from tangram_sim.serving.outcome import ServiceOutcome
from tangram_sim.serving.synthetic import LengthMix, synthetic
from tangram_sim.serving_planners.problem_file import read_problem
from tangram_sim.studies.serving_plan import plan_problem
from tangram_sim.studies.serving_simulation import simulate_service
from tests.unit.serving_planners.test_plan_problem import PAPER

OWN = {"step_s": 0.01, "decode_s": 1e-4, "prompt_s": 2e-5, "kv_blocks": 4000}
FLEET = {"replicas": [{"name": "mine", "count": 2, "usd_per_hour": 3.0, "costs": OWN}]}


def test_a_run_is_shown_with_its_queue_memory_and_replicas() -> None:
    work = synthetic(300, 20.0, [LengthMix(400, 60)], 0)
    found, played = simulate_service(read_fleet(FLEET, Hwdb.load(())), work)
    text = simulation_report(found, played, "fleet.yaml")
    for key in ('id="latencies"', 'id="over-time"', 'id="kv"', 'id="replicas"', 'id="busy"'):
        assert key in text
    assert "300 of 300 requests" in text
    assert "default-src 'none'" in text
    times, waiting, running, held = over_time(played, 4000)
    # Little's law by the page's own curves.
    inside = float(np.trapezoid(waiting + running, times))
    assert inside == pytest.approx(float(ServiceOutcome(played).e2e_s.sum()), rel=0.02)
    assert 0 < held.max() <= 1


def test_a_plan_is_shown_beside_what_else_could_be_done() -> None:
    problem, _ = read_problem(PAPER)
    text = plan_report(plan_problem(problem), "problem.json")
    for words in (
        "28.4314 s",
        'id="rented"',
        'id="rivals"',
        "t2 alone, available",
        "without choosing parallelism",
    ):
        assert words in text


@given(st.lists(st.sampled_from((0.0, 0.5, 0.5, 2.0, 30.0, 1e3)) | st.floats(0.01, 100.0), min_size=1))
def test_a_share_that_is_drawn_is_that_of_requests_that_took_no_longer(took: list[float]) -> None:
    seconds = np.array(took)
    for series in distributions({"ttft": seconds})["series"]:
        for x, share in series["points"]:
            least, most = (100.0 * np.mean(seconds <= x * end) for end in (1 - 1e-5, 1 + 1e-5))
            assert least - 1e-3 <= share <= most + 1e-3
        assert series["points"][-1][1] == 100.0
