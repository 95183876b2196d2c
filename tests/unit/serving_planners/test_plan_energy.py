"""Watts of service plans: they add up, caps hold, and capped pipelines cost what each costs alone."""

from typing import Any

import numpy as np
import pytest

from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.serving.calibration import CalibrationTable
from tangram_sim.serving.closed_form import Load
from tangram_sim.serving.energy import CappedStepCost
from tangram_sim.serving.outcome import Slo
from tangram_sim.serving.workload import plain
from tangram_sim.serving_planners.offer_file import Offers
from tangram_sim.serving_planners.offers import GpuOffer, OfferPricer
from tangram_sim.serving_planners.pipelines import batches
from tangram_sim.studies.serving_model_plan import plan_service
from tangram_sim.studies.serving_plan import PlanEnergyDocument, ServePlanDocument
from tangram_sim.studies.serving_question import COST, MAKESPAN, EnergyTerms, ServiceGoal
from tests.commands import tangram

HWDB = Hwdb.load()
H100, L40S = HWDB.gpu("H100").name, HWDB.gpu("L40S").name


def planned(objective: str = COST, **terms: float) -> ServePlanDocument:
    offers = Offers((GpuOffer(H100, 2.5, 4), GpuOffer(L40S, 0.9, 4)))
    work = plain(np.arange(200) * 0.1, np.full(200, 1024), np.full(200, 256))
    goal = ServiceGoal(objective, energy=EnergyTerms(**terms), slo=Slo(2.0, 0.08))
    return plan_service({"llama3-8b": load_model("llama3-8b")}, offers, work, HWDB, goal, time_limit_s=2.0)


def energy(found: ServePlanDocument) -> PlanEnergyDocument:
    assert found.energy is not None
    return found.energy


def gpus(found: ServePlanDocument) -> int:
    return sum(found.gpus_used.values())


@pytest.mark.parametrize("objective", [COST, MAKESPAN])
def test_watts_joules_and_kwh_of_a_plan_add_up(objective: str) -> None:
    found = planned(objective, pue=1.4, carbon_g_per_kwh=350.0)
    told = energy(found)
    rate = sum(planned_type.amount * planned_type.output_tokens for planned_type in found.types) / (
        found.makespan_s or 1.0
    )
    if objective == COST:
        rate = sum(planned_type.amount * planned_type.output_tokens for planned_type in found.types)
    assert told.joules_per_output_token * rate == pytest.approx(told.gpu_w)
    assert told.site_w == pytest.approx(1.4 * (told.gpu_w + told.host_w))
    seconds = found.makespan_s if objective == MAKESPAN else 86400.0
    assert told.kwh == pytest.approx(told.site_w * (seconds or 0.0) / 3.6e6)
    assert told.kg_co2e == pytest.approx(0.35 * told.kwh)
    for name, (low, high) in told.intervals.items():
        assert low <= getattr(told, name) <= high


def test_a_cap_holds_every_gpu_of_the_plan() -> None:
    capped = planned(power_cap_w=250.0)
    assert energy(capped).intervals["gpu_w"][1] <= 250.0 * gpus(capped) * (1 + 1e-9)
    assert capped.fleet is not None and capped.fleet["power_cap_w"] == 250.0


def test_a_cap_never_makes_a_plan_cheaper_or_faster() -> None:
    assert (planned(power_cap_w=250.0).cost_per_hour or 0.0) >= (planned().cost_per_hour or 0.0)
    assert (planned(MAKESPAN, power_cap_w=250.0).makespan_s or 0.0) >= (planned(MAKESPAN).makespan_s or 0.0)


def test_a_cap_that_no_clock_reaches_is_refused_with_watts() -> None:
    with pytest.raises(InfeasibleError, match="cannot be met"):
        planned(power_cap_w=60.0)


def test_capped_pipelines_side_by_side_cost_what_each_costs_alone() -> None:
    loads = Load.of(np.array([1024.0, 128.0]), np.array([256.0, 512.0]))
    pricer = OfferPricer(load_model("llama3-8b"), HWDB, "vllm", "bf16", loads, Slo(), power_cap_w=250.0)
    pipelines: list[Any] = [[(H100, 1, 32)], [(L40S, 1, 32)], [(H100, 1, 20), (L40S, 1, 12)]]
    deployments = [pricer.deployment(pipeline) for pipeline in pipelines]
    table = CalibrationTable.load(HWDB)
    found, _ = batches(deployments, HWDB, table, 250.0)
    b = np.array([1.0, 64.0])
    for batch in found:
        many = len(batch.numbers)
        rows, contexts = np.tile([0.0, 2048.0], many), np.tile(b * 700.0, many)
        together = batch.cost.step_s(rows, rows * 512.0, np.tile(b, many), contexts).reshape(many, 2)
        for number, seconds in zip(batch.numbers.tolist(), together, strict=True):
            item = deployments[number]
            alone = CappedStepCost(item, HWDB, table.fit_of(item), 250.0)
            assert alone.step_s(rows[:2], rows[:2] * 512.0, b, contexts[:2]) == pytest.approx(seconds)


@pytest.mark.parametrize("options", [("--power-cap", "many"), ("--pue", 0.5), ("--carbon", -1)])
def test_terms_that_cannot_be_are_refused_by_name(options: tuple[str, Any]) -> None:
    told = tangram("serve", "plan", "llama3-8b", "--fleet", "H100x8:1", *options)
    assert told.code == 2 and options[0] in told.err
