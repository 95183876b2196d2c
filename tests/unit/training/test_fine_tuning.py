"""Fine-tuning: 4-bit frozen weights, packed documents, Muon; what they save and what they cost."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.models import lora_parameters
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.questions.plan import PlanQuestion
from tangram_sim.studies import api
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.training.job import NF4_BYTES, Job
from tests.commands import tangram

HWDB = Hwdb.load()
MODEL, CLUSTER = load_model("llama3-8b"), load_cluster("L40Sx4:1", HWDB)
SHARE = lora_parameters(MODEL, 16) / MODEL.parameters
LORA = Job(global_batch=32, seq=4096, trainable=SHARE)


def estimated(job: Job, layout: Uniform | None = None) -> PlanDocument:
    return api.estimate(MODEL, CLUSTER, job, layout or Uniform(tp=1, dp=4), hwdb=HWDB).document


def test_frozen_weights_of_four_bits_save_memory_and_cost_time() -> None:
    plain, quantised = estimated(LORA), estimated(replace(LORA, frozen="nf4"))
    blocks = sum(block.parameters(MODEL.hidden) for block in MODEL.blocks)
    saved = plain.peak_memory_allocated_bytes - quantised.peak_memory_allocated_bytes
    assert saved == pytest.approx((1 - SHARE) * blocks * (2.0 - NF4_BYTES), rel=1e-6)
    assert plain.step_s < quantised.step_s < 2 * plain.step_s
    assert quantised.work_bound_step_s <= quantised.step_s


def test_where_everything_is_trained_the_format_of_frozen_weights_is_refused() -> None:
    with pytest.raises(BadInputError, match="lora_rank=16"):
        assert PlanQuestion("llama3-8b", "L40Sx4:1", job=Job(frozen="nf4")).trained
    shown = tangram("plan", "llama3-8b", "L40Sx4:1", "--frozen", "nf4")
    assert shown.code != 0 and "--lora-rank 16" in shown.err


@given(packed=st.floats(1.0, 8192.0), more=st.floats(1.0, 4.0))
def test_longer_documents_never_attend_to_less(packed: float, more: float) -> None:
    job, longer = Job(seq=4096, packed=packed), Job(seq=4096, packed=packed * more)
    assert 1 <= job.attended <= longer.attended <= 4096


def test_packed_documents_spare_attention_alone() -> None:
    whole, packed = estimated(LORA), estimated(replace(LORA, packed=400.0))
    assert packed.step_s < whole.step_s
    short = estimated(replace(LORA, packed=4096.0))
    assert short.step_s == whole.step_s, "documents as long as the sequence are the sequence"
    assert packed.tokens_per_s * packed.step_s == whole.tokens_per_s * whole.step_s


def test_muon_holds_less_than_adamw_and_takes_longer_to_update() -> None:
    model, layout = load_model("gpt3-1.3b"), Uniform(tp=4, zero_stage=0)

    def under(optimizer: str) -> PlanDocument:
        job = Job(global_batch=32, seq=2048, optimizer=optimizer)
        return api.estimate(model, CLUSTER, job, layout, hwdb=HWDB).document

    adamw, muon, momentum = under("adamw"), under("muon"), under("momentum")
    assert muon.step_s > adamw.step_s
    held = [found.peak_memory_allocated_bytes for found in (momentum, muon, adamw)]
    assert held[0] < held[1] < held[2], "the model's ends have AdamW's state"


def test_plan_takes_all_of_it_from_the_command_line() -> None:
    options = ["--lora-rank", "16", "--frozen", "nf4", "--packed", "300", "--effort", "quick", "--json"]
    shown = tangram("plan", "llama3-8b", "L40Sx4:1", *options)
    assert shown.code == 0, shown.err
    found = PlanDocument.model_validate_json(shown.out)
    assert (found.job.frozen, found.job.packed) == ("nf4", 300.0)
    assert found.job.trainable == pytest.approx(SHARE)


TUNED = (
    "--lora-rank",
    "16",
    "--frozen",
    "nf4",
    "--packed",
    "300",
    "--global-batch",
    "16",
    "--effort",
    "quick",
)
ALONE = ("--jobs", "1", "--no-cache", "--json")


def test_what_if_plans_the_fine_tuning_that_plan_does():
    """The same tokens/s as `plan` on the same nodes, before failures; all weights would not even fit."""
    asked = ("what-if", "llama3-8b", "A10x4:1", "--add", "L40Sx4:1")
    rows = tangram(*asked, *TUNED, *ALONE).json["candidates"]
    both = tangram("plan", "llama3-8b", "A10x4:1+L40Sx4:1", *TUNED, "--json").json["tokens_per_s"]
    assert rows[1]["tokens_per_s"] == pytest.approx(both * rows[1]["goodput"], rel=1e-9)
    whole = tangram(*asked, "--global-batch", "16", "--effort", "quick", *ALONE).json["candidates"]
    assert not whole[0]["tokens_per_s"] and rows[0]["tokens_per_s"] > 0


def test_purchase_plans_the_fine_tuning_of_each_of_its_models():
    asked = ("purchase", "gpt3-1.3b", "none", "--cloud", "lambda", "--tokens", "1B", "--max-nodes", "1")
    tuned, plain = (tangram(*asked, *more, *ALONE) for more in (TUNED, TUNED[-4:]))
    assert tuned.code == plain.code == 0, tuned.err + plain.err
    tuned_usd, plain_usd = (each.json["recommended"]["usd_per_million_tokens"] for each in (tuned, plain))
    assert tuned_usd < plain_usd
    words = tangram(*asked, *TUNED, *ALONE[:2]).out
    assert "of the weights trained, frozen ones in nf4, documents of 300 tokens packed" in words
