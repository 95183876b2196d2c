"""A dry run of exports: a framework that is there reads the files, one that is not there is named."""

import sys
from pathlib import Path

import pytest

from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.export.checking import check
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
