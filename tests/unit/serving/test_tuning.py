"""Engine settings found for an objective: no worse than defaults, near brute force, played, exported."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.export.service.groups import service_of
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.serving.fleet_file import read_fleet
from tangram_sim.serving.outcome import Slo
from tangram_sim.serving.synthetic import LengthMix, synthetic
from tangram_sim.serving.workload import Workload, plain
from tangram_sim.studies.serving_rates import at_rate, greatest_rate, replica_keeps
from tangram_sim.studies.serving_tuning import (
    BUDGET,
    LIMITS,
    SEATS,
    _Tuning,
    degrees_of,
    tune_service,
    with_settings,
)
from tests.commands import tangram

HWDB = Hwdb.load()
SLO = Slo(1.0, 0.03)
ONE: dict[str, Any] = {"model": "llama3-8b", "replicas": [{"gpu": "H100-SXM5-80GB"}]}
UNEQUAL: dict[str, Any] = {
    "model": "llama3-8b",
    "replicas": [{"gpu": "H100-SXM5-80GB"}, {"gpu": "L40S"}],
}


def requests(count: int = 200, seed: int = 0) -> Workload:
    return synthetic(count, 5.0, [LengthMix(1024, 128, 1.0, 0.5)], seed)


@given(st.floats(1e-2, 1e4), st.floats(0.1, 100.0))
def test_the_greatest_rate_is_found_to_four_thousandths(limit: float, start: float) -> None:
    found = greatest_rate(lambda rate: rate <= limit, start)
    if limit >= start / 512:
        assert limit / 1.0041 <= found <= limit
    assert greatest_rate(lambda rate: rate <= limit, start, floor=limit * 1.01) == 0.0


def test_rates_too_short_to_fill_a_replica_are_played_again_and_again() -> None:
    slow, quick = at_rate(requests(), 0.5, SLO), at_rate(requests(), 100.0, SLO)
    assert len(slow) == 200 < len(quick)
    assert quick.rate_rps == pytest.approx(100.0, rel=0.02)
    assert quick.span_s >= 4.0 * SLO.ttft_s


def test_tuned_settings_are_no_worse_than_the_files_and_below_the_bound() -> None:
    found = tune_service(ONE, requests(), SLO, HWDB)
    assert found.default_goodput_rps <= found.goodput_rps <= found.bound_rps
    (tuned_replica,) = found.replicas
    assert tuned_replica.default_goodput_rps <= tuned_replica.goodput_rps <= tuned_replica.bound_rps


@pytest.mark.slow
def test_tuned_settings_are_as_good_as_the_best_of_all_pairs() -> None:
    work = requests()
    found = tune_service(ONE, work, SLO, HWDB)
    best = 0.0
    for seats, budget in product((8, 32, 128, 512), (512, 2048, 8192)):
        replica = {**ONE["replicas"][0], SEATS: seats, BUDGET: budget}
        fleet_replica = read_fleet({**ONE, "replicas": [replica]}, HWDB).replicas[0]
        best = max(best, greatest_rate(replica_keeps(fleet_replica, work, SLO), 5.0, best))
    assert found.replicas[0].goodput_rps >= 0.99 * best


@pytest.mark.slow
def test_formats_are_chosen_only_where_they_are_allowed() -> None:
    found = tune_service(ONE, requests(), SLO, HWDB, {"precision": ["bf16", "fp8"]})
    assert found.replicas[0].settings["precision"] == "fp8"
    assert found.goodput_rps > tune_service(ONE, requests(), SLO, HWDB).goodput_rps
    assert service_of(found.fleet, HWDB).groups[0].precision == "fp8"


def test_unequal_replicas_get_requests_by_what_they_serve() -> None:
    found = tune_service(UNEQUAL, requests(), SLO, HWDB)
    shares = [item["shares"][0] for item in found.fleet["replicas"]]
    alone = [replica.goodput_rps for replica in found.replicas]
    assert sum(shares) == pytest.approx(1.0)
    assert shares[0] / shares[1] == pytest.approx(alone[0] / alone[1])
    assert found.goodput_rps > found.default_goodput_rps


def test_the_tuned_fleet_is_simulated_and_exported_with_its_settings(tmp_path: Path) -> None:
    fleet, tuned = tmp_path / "fleet.yaml", tmp_path / "tuned.json"
    fleet.write_text("model: llama3-8b\nreplicas: [{gpu: H100}]\n")
    load = ("--rate", 5, "--isl", 1024, "--osl", 128, "--requests", 200, "--slo", "ttft=1,tpot=30ms")
    told = tangram("serve", "tune", fleet, *load, "--kv-precisions", "auto,fp8", "-o", tuned, "--json").json
    settings = told["replicas"][0]["settings"]
    launched = tangram("serve", "export", tuned, "--to", "vllm").out
    assert f"--max-num-seqs {settings[SEATS]} --max-num-batched-tokens {settings[BUDGET]}" in launched
    rate = 0.95 * told["goodput_rps"]
    played = tangram("serve", "simulate", tuned, *load, "--rate", rate, "--json").json
    assert played["good_share"] >= 0.99


@pytest.mark.parametrize(
    ("data", "slo", "choices", "words"),
    [
        (ONE, Slo(), {}, "ttft=1"),
        (ONE, SLO, {"tp": [2]}, "known are memory_fraction"),
        ({"model": "llama3-8b", "replicas": [{"costs": {"step_s": 0.01, "kv_blocks": 9}}]}, SLO, {}, "own"),
    ],
)
def test_what_cannot_be_tuned_is_refused(data: dict[str, Any], slo: Slo, choices: Any, words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        tune_service(data, requests(20), slo, HWDB, choices)


def test_a_burst_has_no_rate_to_tune_for() -> None:
    burst = plain(np.zeros(10), np.full(10, 100), np.full(10, 10))
    with pytest.raises(BadInputError, match="all at once"):
        tune_service(ONE, burst, SLO, HWDB)


def test_an_objective_that_nothing_keeps_is_told() -> None:
    with pytest.raises(InfeasibleError, match="no settings keep the objective"):
        tune_service(ONE, requests(20), Slo(1e-4, 1e-4), HWDB)


MOE: dict[str, Any] = {"model": "qwen3-30b-a3b", "replicas": [{"gpu": "H100-SXM5-80GB", "tp": 4}]}


def test_degrees_of_a_model_with_experts_are_chosen_on_the_same_gpus() -> None:
    """All degrees fill the replica's GPUs; the best is no worse than the file's, is played and exported."""
    choices = degrees_of(load_model("qwen3-30b-a3b"), MOE["replicas"][0])
    assert {"tp4 dp1 ep1", "tp1 dp4 ep1", "tp2 dp2 ep4"} <= set(choices)
    found = tune_service(MOE, requests(), SLO, HWDB, {"degrees": choices})
    (replica,) = found.fleet["replicas"]
    assert replica["tp"] * replica["attention_dp"] == 4 and replica["ep"] in (1, 4)
    assert found.goodput_rps > 1.05 * found.default_goodput_rps
    by_hand = [with_settings(MOE["replicas"][0], {"degrees": words}) for words in choices]
    for entry in by_hand:
        built = read_fleet({**MOE, "replicas": [entry]}, HWDB)
        assert built.gpus == {next(iter(built.gpus)): {"H100-SXM5-80GB": 4}}
    (group,) = service_of(found.fleet, HWDB).groups
    assert (group.attention_dp, group.gpus) == (replica["attention_dp"], 4)
    assert degrees_of(load_model("llama3-8b"), {"gpu": "L40S", "tp": 2}) == []


def test_drafts_are_chosen_where_their_acceptance_is_given() -> None:
    """At a time per token that one token an iteration hardly keeps, accepted drafts serve more requests."""
    tight, sure = Slo(1.0, 0.009), {**ONE["replicas"][0], "acceptance": 0.9}
    plain_ = tune_service(ONE, requests(), tight, HWDB)
    found = tune_service({**ONE, "replicas": [sure]}, requests(), tight, HWDB, {"drafts": [2, 4]})
    assert found.replicas[0].changed["drafts"] in (2, 4)
    assert found.goodput_rps > plain_.goodput_rps
    with pytest.raises(BadInputError, match="no `acceptance`"):
        tune_service(ONE, requests(), tight, HWDB, {"drafts": [2]})


def test_drafts_are_tried_only_where_the_engine_starts_them() -> None:
    """SGLang takes them or groups of attention, not both: some of degrees and drafts are left out."""
    entry = {**MOE["replicas"][0], "tp": 2, "acceptance": 0.9}
    sglang: dict[str, Any] = {**MOE, "engine": "sglang", "replicas": [entry]}
    choices = {"degrees": ["tp2 dp1 ep1", "tp1 dp2 ep2"], "drafts": [0, 2]}
    for data, both in (({**sglang, "engine": "vllm"}, True), (sglang, False)):
        tuning = _Tuning(data, entry, requests(20), SLO, HWDB, choices)
        built = tuning._build((("degrees", "tp1 dp2 ep2"), ("drafts", 2)))
        assert (built is not None) == both
        assert tuning._build((("degrees", "tp2 dp1 ep1"), ("drafts", 2))) is not None
    staged = {**ONE["replicas"][0], "pp": 2, "acceptance": 0.9}
    with pytest.raises(BadInputError, match="draft tokens to try, which engines do not check in several"):
        tune_service({**ONE, "replicas": [staged]}, requests(20), SLO, HWDB, {"drafts": [2]})
    with pytest.raises(BadInputError, match="which SGLang does not look up beside 2 groups"):
        grouped = {**entry, "tp": 1, "attention_dp": 2}
        tune_service({**sglang, "replicas": [grouped]}, requests(20), SLO, HWDB, {"drafts": [2]})


class _Counted(_Tuning):
    """A search that counts how often it changes one setting after the other."""

    descents = 0

    def _descend(self) -> None:
        self.descents += 1
        super()._descend()


class _OneStart(_Counted):
    """A search from the settings of the file alone."""

    def _spread(self) -> Iterator[dict[str, Any]]:
        return iter(())


def test_settings_that_gain_only_together_are_found_from_a_second_start() -> None:
    """A row of benchmarks/results/serving_settings.md, with fewer requests: 30 % more than from one start."""
    entry = {"gpu": "L40S", "acceptance": 0.65}
    work = synthetic(150, 1.0, [LengthMix(909.0, 186.0, 1.0, 1.0)], 0)
    choices = {**LIMITS, "kv_precision": ["auto", "fp8"], "drafts": [0, 1, 2, 4]}
    asked = ({"model": "qwen3-14b", "replicas": [entry]}, entry, work, Slo(5.0, 0.1), HWDB, choices)
    one, two = _OneStart(*asked), _Counted(*asked)
    assert two.run().best_rps > 1.2 * one.run().best_rps
    assert (one.descents, two.descents) == (1, 2)


def test_a_second_start_that_gains_nothing_is_not_searched_from_again() -> None:
    found = _Counted(ONE, ONE["replicas"][0], requests(20), Slo(1e-4, 1e-4), HWDB, LIMITS)
    assert found.run().best_rps == 0.0 and found.descents == 1


def test_degrees_and_drafts_are_options(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("model: qwen3-30b-a3b\nreplicas:\n  - {gpu: H100, tp: 2}\n")
    asked = ("serve", "tune", fleet, "--rate", 5, "--isl", 512, "--osl", 64, "--requests", 100)
    told = tangram(
        *asked, "--slo", "ttft=1,tpot=0.02", "--degrees", "--drafts", "2", "--acceptance", "0.8", "--json"
    )
    assert told.json["replicas"][0]["goodput_rps"] >= told.json["replicas"][0]["default_goodput_rps"]
    assert told.json["fleet"]["replicas"][0]["acceptance"] == 0.8
    refused = tangram(*asked, "--slo", "ttft=1", "--drafts", "many")
    assert refused.code == 2 and "--drafts" in refused.err
