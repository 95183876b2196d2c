"""Speculative tokens as a setting that a plan of a service chooses, where their acceptance is given."""

from typing import Any

import numpy as np
import pytest

from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.serving.closed_form import Load
from tangram_sim.serving.deployment import Speculation
from tangram_sim.serving.outcome import Slo
from tangram_sim.serving_planners.offers import GpuOffer, OfferPricer
from tangram_sim.serving_planners.peers import candidates
from tests.commands import tangram

ASKED = ("--workload", "800:400:1", "--rate", 6, "--slo", "ttft=2,tpot=0.03", "--requests", 200)
DRAFTS = ("--drafts", "2,4", "--acceptance", 0.8)


def planned(*more: object) -> Any:
    return tangram("serve", "plan", "llama3-70b", "H100x8:2", *ASKED, *more, "--json").json


def test_accepted_drafts_make_a_service_cheaper_and_are_played() -> None:
    """Half the GPUs keep 30 ms a token; the simulator plays the drafts and agrees."""
    told, without = planned(*DRAFTS), planned()
    (replica,) = told["fleet"]["replicas"]
    assert (replica["drafts"], replica["acceptance"]) == (2, 0.8)
    assert told["cost_per_hour"] < without["cost_per_hour"]
    assert told["replay"]["good_share"] >= 0.99 and not told["replay"]["verdict"]
    assert all("drafts" not in replica for replica in without["fleet"]["replicas"])


def test_drafts_that_are_hardly_accepted_are_not_taken() -> None:
    told, without = planned("--drafts", "4", "--acceptance", 0.02), planned()
    assert told["cost_per_hour"] == without["cost_per_hour"]
    assert all("drafts" not in replica for replica in told["fleet"]["replicas"])


def test_a_bound_holds_for_drafts_too_where_the_plan_without_them_is_played_better() -> None:
    """Three GPUs with drafts carry the mean, not the tail; the four without are not called the best."""
    asked = ("--workload", "4000:30:1", "--rate", 16, "--slo", "ttft=4,tpot=0.015", "--requests", 200)
    more = ("--drafts", "2,4", "--acceptance", 0.9)
    told = tangram("serve", "plan", "llama3-8b", "H100x8:1", *asked, *more, "--json").json
    assert all("drafts" not in replica for replica in told["fleet"]["replicas"])
    assert told["status"] == "feasible" and told["bound"] < told["cost_per_hour"]
    assert told["gap"] == pytest.approx(1.0 - told["bound"] / told["cost_per_hour"])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--drafts", "2"), "give --acceptance 0.7"),
        (("--acceptance", "0.7"), "give --drafts 2,4"),
        ((*DRAFTS, "--objective", "makespan"), "belongs to a rate"),
        (("--drafts", "two", "--acceptance", "0.7"), "--drafts"),
    ],
)
def test_drafts_without_what_they_need_are_refused(given: tuple[object, ...], words: str) -> None:
    refused = tangram("serve", "plan", "llama3-8b", "H100x8:1", *ASKED, *given)
    assert refused.code == 2 and words in refused.err, refused.err


def test_a_plan_has_no_drafts_that_its_engine_does_not_start() -> None:
    """Drafts beside groups of attention, which vLLM starts and SGLang does not; none of TensorRT-LLM."""
    for engine, some in (("vllm", True), ("sglang", False)):
        model, load = load_model("qwen3-30b-a3b"), Load.of(500, 100)
        pricer = OfferPricer(model, Hwdb.load(), engine, "bf16", load, Slo(2.0, 0.05))
        offers = [GpuOffer("H100-SXM5-80GB", 2.0, 2)]
        found = candidates("milp", pricer, offers, np.ones(1), None, speculations=[Speculation(2, 0.9)])
        drafted = [each for each in found if each.speculation]
        assert any(each.attention_dp > 1 for each in found) and drafted
        assert any(each.attention_dp > 1 for each in drafted) == some
    refused = tangram("serve", "plan", "llama3-8b", "H100x8:1", *ASKED, *DRAFTS, "--engine", "trtllm")
    assert refused.code == 2 and "trtllm-serve takes from a file alone" in refused.err, refused.err
