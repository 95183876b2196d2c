"""Watts of replicas: more work draws more, caps are met and slow arithmetic alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.studies.replica_question import ReplicaQuestion
from tangram_sim.studies.serving_estimate import ServeEstimateDocument, estimate_service
from tangram_sim.units import read_watts

HWDB = Hwdb.load()


def estimate(**changes: object) -> ServeEstimateDocument:
    question = {"model": "llama3-70b", "gpu": "H100-SXM", "tp": 4, "concurrency": 64.0} | changes
    return estimate_service(ReplicaQuestion(**question), HWDB)  # type: ignore[arg-type]


def test_more_requests_draw_more_watts_and_fewer_joules_a_token() -> None:
    loads = [estimate(concurrency=float(many)) for many in (1, 4, 16, 64)]
    watts = [load.gpu_w for load in loads]
    joules = [load.joules_per_output_token for load in loads]
    assert watts == sorted(watts)
    assert joules == sorted(joules, reverse=True)


def test_joules_per_token_are_watts_over_tokens_per_second() -> None:
    found = estimate()
    assert found.joules_per_output_token == pytest.approx(found.gpu_w / found.output_tok_s)
    low, high = found.intervals["gpu_w"]
    assert low < found.gpu_w < high


def test_an_idle_replica_draws_little() -> None:
    assert estimate(rate=0.001).gpu_w < 0.25 * estimate().gpu_w


@pytest.mark.parametrize("cap", [600.0, 450.0, 300.0])
def test_no_gpu_draws_more_than_its_cap(cap: float) -> None:
    found = estimate(power_cap_w=cap)
    assert found.gpu_w / found.gpus <= cap
    assert found.output_tok_s <= estimate().output_tok_s


def test_a_cap_slows_prompts_and_leaves_decodes_that_wait_for_memory() -> None:
    free, capped = estimate(concurrency=1.0), estimate(concurrency=1.0, power_cap_w=250.0)
    assert capped.step_s == pytest.approx(free.step_s, rel=1e-3)
    assert capped.prompt_s > 1.1 * free.prompt_s


def test_a_cap_below_the_lowest_clock_is_refused_with_watts() -> None:
    with pytest.raises(InfeasibleError, match="cannot be met: H100-SXM5-80GB still draws"):
        estimate(power_cap_w=60.0)


def test_a_gpu_without_a_power_limit_is_estimated_without_watts() -> None:
    found = estimate(model="llama3-8b", gpu="TPUv5p", tp=1)
    assert found.gpu_w == 0.0
    assert any("watts are not known" in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "watts"), [("400W", 400.0), ("400", 400.0), ("1.2 kW", 1200.0), ("0.5MW", 5e5)]
)
def test_watts_are_read_with_their_unit(text: str, watts: float) -> None:
    assert read_watts(text) == pytest.approx(watts)


@pytest.mark.parametrize("text", ["", "W", "-5", "0", "many", "nan", "400mW", "400m"])
def test_other_watts_are_refused(text: str) -> None:
    with pytest.raises(BadInputError, match="give watts above 0"):
        read_watts(text)


def test_a_cap_that_nothing_reaches_changes_no_time_and_widens_no_interval() -> None:
    free, capped = estimate(), estimate(power_cap_w=700.0)
    assert capped.tpot_s == pytest.approx(free.tpot_s)
    assert capped.intervals == free.intervals
    assert any("lowers no clock" in note for note in capped.notes)


@settings(deadline=None)
@given(st.floats(250.0, 900.0), st.sampled_from([1.0, 8.0, 64.0, 256.0]), st.sampled_from([1, 2, 4]))
def test_no_interval_of_watts_reaches_above_caps_and_boards(cap: float, clients: float, tp: int) -> None:
    found = estimate(model="llama3-8b", concurrency=clients, tp=tp, power_cap_w=cap)
    low, high = found.intervals["gpu_w"]
    assert low <= found.gpu_w <= high <= tp * min(cap, 700.0) * (1 + 1e-9)


def test_boards_limit_watts_where_no_cap_is_given() -> None:
    found = estimate(concurrency=256.0)
    assert found.intervals["gpu_w"][1] <= found.gpus * 700.0


def test_the_tighter_the_cap_the_less_sure_the_time_of_a_token() -> None:
    def width(cap: float) -> float:
        low, high = estimate(power_cap_w=cap).intervals["tpot_s"]
        return high / low

    widths = [width(cap) for cap in (700.0, 500.0, 400.0, 300.0)]
    assert widths == sorted(widths) and widths[0] < widths[-1]


def test_a_tighter_cap_never_speeds_anything_up() -> None:
    speeds = [estimate(power_cap_w=cap).output_tok_s for cap in (600.0, 450.0, 350.0, 250.0)]
    assert speeds == sorted(speeds, reverse=True)
