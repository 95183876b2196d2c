"""What `import tangram_sim` offers: the same names to type checkers and at run time, tables, plots."""

import ast
from importlib.resources import files

import pytest

import tangram_sim as ts
from tests.places import ROOT


def test_type_checkers_see_what_is_there_at_run_time():
    tree = ast.parse((ROOT / "tangram_sim" / "__init__.pyi").read_text())
    seen = {
        alias.asname: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen.pop("__version__") == "tangram_sim.version"
    assert seen.pop("rl") == "tangram_sim"
    assert seen == ts._PUBLIC
    assert (files("tangram_sim") / "py.typed").is_file()


@pytest.mark.parametrize("name", ts.__all__)
def test_every_public_name_resolves_and_is_listed(name):
    assert getattr(ts, name) is not None
    assert name in dir(ts)


def test_an_absent_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="absent"):
        ts.absent  # noqa: B018


def test_results_by_name_as_table_and_as_plots():
    found = ts.estimate("gpt3-1.3b", "azure-c1-t4x4-v100x4", ts.Job(global_batch=32), ts.Uniform(tp=4))
    frame = found.to_frame()
    assert len(frame) == len(found.document.stages)
    assert frame["forward_s"].tolist() == [stage.forward_s for stage in found.document.stages]
    assert found.step_s == found.document.step_s
    assert "gpt3-1.3b on azure-c1-t4x4-v100x4" in repr(found)
    assert "<table" in found._repr_html_()
    ends = [max(base + x for base, x in zip(bar.base, bar.x, strict=True)) for bar in found.plot().data]
    assert max(ends) == pytest.approx(found.step_s)
    held = found.plot("memory").data
    assert held[-1].name == "capacity"
    with pytest.raises(ts.UnknownNameError, match="timeline"):
        found.plot("pie")


def test_unknown_names_say_what_is_near():
    with pytest.raises(ts.UnknownNameError, match=r"gpt3-1\.3b"):
        ts.estimate("gpt3-1.3", "azure-c1")


def test_a_job_shows_its_batch_and_what_differs_from_the_defaults():
    assert repr(ts.Job(global_batch=64, seq=4096)) == "Job(global_batch=64, seq=4096)"
    assert eval(repr(ts.Job(stack="nemo", dtype="fp8")), {"Job": ts.Job}) == ts.Job(stack="nemo", dtype="fp8")
