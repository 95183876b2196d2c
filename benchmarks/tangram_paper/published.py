"""Layouts that the paper's authors published with their scripts: no search, one prediction each."""

from dataclasses import replace
from typing import Any

from benchmarks.tangram_paper.run import OVERLAY
from benchmarks.tangram_paper.systems import DEEPSPEED, GALVATRON, question
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.models import Model
from tangram_sim.planners.uniform.layouts import Uniform, uniform_plan
from tangram_sim.studies.forecast import forecast

# Embedding and three blocks in front, four blocks and the head behind: "4 4 4 4 4 4 5 5" in units.
SAILOR = Uniform(tp=2, pp=8, dp=1, layers=(3, 4, 4, 4, 4, 4, 5, 4))
# "--pp_deg 2 --global_ep_deg 2 --chunks 32 --global_checkpoint 1", batch 128, 4 layers, heads of 64.
QWEN = Uniform(tp=1, pp=2, dp=2, ep=2, micro_batch=2, zero_stage=2, recompute="full")
QWEN_MEASURED_S = 7.507  # taoyanda/Galvatron, models/moe/scripts/hybrid_overhead_smoke_test.py at 174c52d


def predicted() -> list[dict[str, Any]]:
    """What, its source, the paper's bar it belongs to (if any), seconds measured (if stated), ours."""
    hwdb = Hwdb.load([OVERLAY])
    rows = []
    for cluster, bar in (("azure-c1-t4x16", "16xT4"), ("azure-c1-v100x16", "16xV100-16")):
        put = question(DEEPSPEED, load_model("gpt3-6.7b"), load_cluster(cluster, hwdb), 2048, hwdb)
        played = forecast(uniform_plan(put.model, put.cluster, put.job, SAILOR), hwdb)
        what = f"gpt3-6.7b on {cluster}: tp 2, 8 stages (Sailor's launch script)"
        rows.append({"what": what, "bar": bar, "measured_s": None, "ours_s": played.step_s})
    model, node = few_layers(load_model("qwen3-30b-a3b")), load_cluster("azure-c3-a100x4", hwdb)
    put = question(GALVATRON, model, node, 4096, hwdb)
    played = forecast(uniform_plan(put.model, put.cluster, put.job, QWEN), hwdb)
    what = "4 layers of qwen3-30b-a3b on 4 A100-80: 2 stages, ep 2 (Galvatron's validation run)"
    return [*rows, {"what": what, "bar": "", "measured_s": QWEN_MEASURED_S, "ours_s": played.step_s}]


def few_layers(model: Model) -> Model:
    """Qwen3-30B-A3B as that run had it: four layers, heads of 64."""
    block = model.blocks[0]
    short = replace(block, attention=replace(block.attention, head_dim=64, value_dim=64))
    return replace(model, name=f"{model.name}-4l", blocks=(short,) * 4)
