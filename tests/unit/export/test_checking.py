"""A dry run of exports: a framework that is there reads the files, one that is not there is named."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.export.checking import check
from tangram_sim.export.flagscale import broken
from tangram_sim.export.formats import export
from tests.commands import tangram
from tests.unit.export.test_folder import plan_for


@pytest.mark.parametrize("to", ["megatron", "torchtitan", "deepspeed"])
def test_a_framework_that_is_not_installed_is_named(to: str) -> None:
    plan = plan_for(to)
    said = check(export(plan, to), plan, to, "", sys.executable)
    assert "is not installed for" in said or "reads the files" in said


def test_a_refusal_ends_the_export_with_the_frameworks_last_words(tmp_path: Path, monkeypatch) -> None:
    package = tmp_path / "torchtitan"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "config.py").write_text(
        "class ConfigManager:\n    def parse_args(self, words):\n"
        "        assert words[-1] != 'planned', 'no such recipe'\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    plan = plan_for("torchtitan")
    with pytest.raises(TangramError, match=r"TorchTitan 0\.3\.0 refuses the files: AssertionError: no such"):
        check(export(plan, "torchtitan"), plan, "torchtitan", "", sys.executable)
    older = export(plan, "torchtitan", version="0.2.2")
    said = check(older, plan, "torchtitan", "0.2.2", sys.executable)
    assert said == "TorchTitan 0.2.2 reads the files"


def test_the_rules_of_flagscale_are_held_without_it() -> None:
    plan = plan_for("flagscale")
    assert "hold" in check(export(plan, "flagscale"), plan, "flagscale", "", "no-such-python")


# Two meshes of tp, cp, ep, dp and pp that keep all rules, and for each rule what breaks it alone.
SYSTEM = {"pipeline_model_parallel_size": 2, "use_distributed_optimizer": True}
HETERO = {
    "hetero_process_meshes": [2, 1, 1, 2, 1, 2, 1, 1, 4, 1],
    "hetero_pipeline_layer_split": [3, 5],
    "use_partial_reduce_for_shared_embedding": True,
    "hetero_device_types": ["A", "B"],
    "hetero_current_device_type": "A",
}
MODEL = {"micro_batch_size": 2, "num_layers": 8}
UNTIED = {"untie_embeddings_and_output_weights": True}
BREAKS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "degrees differ in number": ({}, {"expert_tensor_parallel_size_per_process_mesh": [2]}, {}),
    "does not divide dp x micro-batch": ({}, {}, {"micro_batch_size": 1}),
    "context-parallel": ({}, {"hetero_process_meshes": [2, 2, 1, 2, 1, 2, 1, 1, 4, 1]}, {}),
    "do not add up to the pipeline": ({}, {"hetero_process_meshes": [2, 1, 1, 2, 2, 2, 1, 1, 4, 1]}, {}),
    "first and last tp": ({}, {"hetero_process_meshes": [4, 1, 1, 2, 1, 2, 1, 1, 4, 1]}, {}),
    "first and last dp": ({}, {"use_partial_reduce_for_shared_embedding": False}, {}),
    "layers of stages": ({}, {"hetero_pipeline_layer_split": [3, 4]}, {}),
    "a mesh has no label": ({}, {"hetero_device_types": ["A"]}, {}),
    "this device's label": ({}, {"hetero_current_device_type": "C"}, {}),
    "several chunks": ({"num_layers_per_virtual_pipeline_stage": 1}, {}, {}),
    "share its experts": ({}, {"hetero_process_meshes": [2, 1, 8, 2, 1, 2, 1, 1, 4, 1]}, {}),
}


def told(system: dict[str, Any], hetero: dict[str, Any], model: dict[str, Any]) -> list[str]:
    return broken(
        {"system": {**SYSTEM, **system, "hetero": {**HETERO, **hetero}}, "model": {**MODEL, **model}}
    )


@pytest.mark.parametrize("rule", BREAKS)
def test_each_rule_of_flagscale_is_broken_by_what_it_forbids_and_by_nothing_else(rule: str) -> None:
    assert told({}, {}, {}) == []
    (found,) = told(*BREAKS[rule])
    assert rule in found


def test_matrices_of_their_own_and_plain_optimizers_have_no_rule_on_first_and_last() -> None:
    alone = {"use_partial_reduce_for_shared_embedding": False}
    assert told({"use_distributed_optimizer": False}, alone, {}) == told({}, alone, UNTIED) == []
    thirds = {"hetero_process_meshes": [2, 1, 1, 2, 1, 2, 1, 1, 3, 1]}  # no partial reduce of 2 and 3
    (found,) = told({}, thirds, {"micro_batch_size": 3})
    assert "first and last dp" in found


def test_an_interpreter_that_does_not_start_is_bad_input() -> None:
    plan = plan_for("megatron")
    with pytest.raises(BadInputError, match="no-such-python"):
        check(export(plan, "megatron"), plan, "megatron", "", "no-such-python")


def test_the_verb_has_two_names_and_checks(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    made = tangram(
        "estimate", "llama3-8b", "H100-SXM5-80GBx8:2", "--pp", 2, "--dtype", "bf16", "--zero", 1, "-o", plan
    )
    assert made.code == 0, made.err
    told = tangram("train", "export", plan, "--for", "flagscale", "--check", "--json").json
    assert told["to"] == "flagscale" and "hold" in told["notes"][0]
    assert told["files"] == tangram("export", plan, "--to", "flagscale", "--json").json["files"]
    refused = tangram("export", plan, "--to", "rankmap", "--check")
    assert (refused.code, refused.out) == (2, "") and "no parser of its own" in refused.err
