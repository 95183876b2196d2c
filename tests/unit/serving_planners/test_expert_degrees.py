"""Attention data parallelism and expert parallelism as degrees that a plan chooses."""

from pathlib import Path
from typing import Any

import pytest

from tests.commands import tangram

ASKED = ("--workload", "800:400:1", "--rate", 30, "--slo", "ttft=2,tpot=0.05", "--requests", 200)


def planned(model: str, *more: object) -> Any:
    return tangram("serve", "plan", model, "H100x8:1", *ASKED, *more, "--json").json


def test_a_model_with_experts_is_served_by_groups_of_attention(tmp_path: Path) -> None:
    """Two H100 with attention of their own carry what took more before; the plan is played and exported."""
    plan = tmp_path / "plan.json"
    told = planned("qwen3-30b-a3b", "-o", plan)
    (replica,) = told["fleet"]["replicas"]
    assert (replica["gpu"], replica["tp"], replica["attention_dp"]) == ("H100-SXM5-80GB", 1, 2)
    assert told["gpus_used"]["H100-SXM5-80GB"] == replica["tp"] * replica["attention_dp"] * replica["count"]
    assert told["replay"]["error"] > -0.05 and told["replay"]["good_share"] >= 0.99
    shown = tangram("serve", "export", plan, "--to", "vllm", "-o", tmp_path / "out")
    assert shown.code == 0, shown.err
    assert "--data-parallel-size 2" in (tmp_path / "out" / "launch.sh").read_text()


def test_a_model_without_experts_has_no_such_degrees() -> None:
    told = planned("llama3-8b")
    assert all("attention_dp" not in replica for replica in told["fleet"]["replicas"])


def test_more_degrees_to_choose_from_never_cost_more(monkeypatch: pytest.MonkeyPatch) -> None:
    free = planned("mixtral-8x7b")["cost_per_hour"]
    monkeypatch.setattr("tangram_sim.serving_planners.peers.expert_degrees", lambda *_: [])
    assert free <= planned("mixtral-8x7b")["cost_per_hour"]
