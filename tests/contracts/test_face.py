"""What `import tangram_sim` offers: the same names to type checkers and at run time, tables, plots."""

import ast
import dataclasses
import inspect
import pkgutil
from importlib import import_module
from importlib.resources import files
from typing import Any

import pytest

import tangram_sim as ts
from tangram_sim.fields import HasDocument, described, heading, unit_of
from tangram_sim.file_parts import FilePart, _facts_and_tables
from tangram_sim.questions.question import QUESTIONS, question_type
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


NOUNS = [
    name
    for name in ts.__all__
    if inspect.isclass(noun := getattr(ts, name))
    and (dataclasses.is_dataclass(noun) or issubclass(noun, FilePart))
]


def fields_of(noun):
    """Public fields and their types."""
    if dataclasses.is_dataclass(noun):
        return {each.name: each.type for each in dataclasses.fields(noun) if not each.name.startswith("_")}
    return {name: each.annotation for name, each in noun.model_fields.items()}


@pytest.mark.parametrize("name", NOUNS)
def test_help_says_every_field_of_every_public_noun_with_its_unit(name):
    noun = getattr(ts, name)
    said = inspect.getdoc(noun).split("\n\nFields:\n")[1]
    lines = {line.strip().partition(":")[0]: line for line in said.splitlines()}
    for field, kind in fields_of(noun).items():
        words, _, unit = lines[field].partition(": ")[2].partition(" [")
        assert len(words) > 5, lines[field]
        if kind in (float, float | None):
            first = unit.split(";")[0].rstrip("]")  # bounds and defaults follow the unit
            assert first and "default" not in first and "zero" not in first, lines[field]


def test_a_field_that_says_nothing_of_itself_is_refused():
    with pytest.raises(TypeError, match=r"Silent\.figure says nothing"):
        described(dataclasses.make_dataclass("Silent", [("figure", int)]))


def classes_by_name():
    """Every class of the rooms that make answers."""
    found = {}
    for room in ("export", "purchasing", "questions", "studies"):
        package = import_module(f"tangram_sim.{room}")
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            found |= dict(inspect.getmembers(import_module(module.name), inspect.isclass))
    return found


def test_every_verbs_answer_is_shown_by_one_mechanism_in_a_notebook():
    known = classes_by_name()
    for verb in QUESTIONS:
        returned = inspect.signature(question_type(verb).answer).return_annotation
        names = [word.strip() for word in str(getattr(returned, "__name__", returned)).split("|")]
        for name in names:
            answer = known[name.rpartition(".")[2]]
            own = "_repr_html_" in vars(answer)
            assert issubclass(answer, FilePart | HasDocument) and not own, (verb, name)


class _Row(FilePart):
    gpu: str
    forward_s: float
    held_bytes: float
    unused: float = 0.0


class _Found(FilePart):
    step_s: float
    rows: list[_Row]
    notes: list[str]
    shares: dict[str, float]


def test_a_notebook_shows_figures_tables_and_sentences_with_units_and_escapes_names():
    row = _Row(gpu="<script>", forward_s=1 / 3, held_bytes=2.0**31)
    shown = _Found(step_s=1234.5678, rows=[row], notes=["a & b"], shares={"A100": 0.5})._repr_html_()
    for words in (
        "step, seconds",
        "1,235",
        "&lt;script&gt;",
        "forward, seconds",
        "0.3333",
        "held, GiB",
        ">2<",
    ):
        assert words in shown, words
    assert "a &amp; b" in shown and "A100" in shown and "unused" not in shown


class _Stage(FilePart):
    number: int = 0
    layers: tuple[int, int]
    slower: float = 1.0
    price_usd: float | None = None


class _Shown(FilePart):
    stages: list[_Stage]
    peak_bytes: list[int]
    held_bytes: dict[str, int]
    model: dict[str, Any]


def test_a_table_keeps_defaults_among_other_values_and_shows_tuples_and_bytes_of_lists():
    """Stage 0 says that it is 0; a column goes only where all rows have the default."""
    stages = [_Stage(layers=(0, 16)), _Stage(number=1, layers=(16, 32), price_usd=2.5)]
    found = _Shown(stages=stages, peak_bytes=[2**31], held_bytes={"g0": 2**32}, model={"a": 1, "b": []})
    _, tables = _facts_and_tables(found)
    assert dict(tables) == {
        "stages": [
            {"number": 0, "layers": "0, 16", "price, USD": ""},
            {"number": 1, "layers": "16, 32", "price, USD": "2.5"},
        ],
        "peak, GiB": [{"value": "2"}],
        "held, GiB": [{"": "g0", "value": "4"}],
    }
    assert "16, 32" in found._repr_html_()


def test_headings_say_the_unit_of_every_field_of_every_document():
    """A rate never reads as seconds, money per something has its currency, a name is more than its unit."""
    fields = {
        name
        for each in classes_by_name().values()
        if issubclass(each, FilePart)
        for name in each.model_fields
    }
    assert len(fields) > 300
    for name in fields:
        words, _, unit = heading(name).rpartition(", ")
        assert (words or unit) and not (unit_of(name) and not words), name
        assert not words.endswith(" per"), name
        assert "per_s" not in name or unit not in ("seconds", "bytes"), name
        assert "usd" not in name.split("_") or "USD" in unit, name
    told = {
        "mfu": "mfu, a share",
        "memory_margin": "memory margin, a share",
        "generates_per_s": "generates, per second",
        "marginal_tokens_per_usd": "marginal, tokens/USD",
        "tokens_per_s_per_gpu": "throughput per gpu, tokens/s",
        "cost_per_hour": "cost, USD/h",
        "usd_per_million_tokens": "cost per million tokens, USD",
        "step_s_low": "step low, seconds",
    }
    assert {name: heading(name) for name in told} == told


def test_unknown_names_say_what_is_near():
    with pytest.raises(ts.UnknownNameError, match=r"gpt3-1\.3b"):
        ts.estimate("gpt3-1.3", "azure-c1")


def test_a_job_shows_its_batch_and_what_differs_from_the_defaults():
    assert repr(ts.Job(global_batch=64, seq=4096)) == "Job(global_batch=64, seq=4096)"
    assert eval(repr(ts.Job(stack="nemo", dtype="fp8")), {"Job": ts.Job}) == ts.Job(stack="nemo", dtype="fp8")
