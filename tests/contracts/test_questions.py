"""Options, forms, schemas and signatures are the fields of the question, for every verb that has one."""

import ast
import inspect
import re
from dataclasses import fields
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.core import TyperGroup

from tangram_sim.cli.derived import Keeping
from tangram_sim.cli.main import app
from tangram_sim.cli.wording import as_options
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.fields import Leaf, built, leaves, sentence
from tangram_sim.questions.question import (
    QUESTIONS,
    question_of,
    question_schema,
    question_text,
    question_type,
    read_question,
)
from tangram_sim.web.forms import form_fields
from tangram_sim.web.verbs import OFFERED
from tests.places import ROOT

# What every verb has beside its question: how the answer is shown.
FACE = {
    *("as_json", "memory_limit", "quiet", "verbose", "output", "trace", "memory", "candidates", "ablation"),
    *("plot", "timeline", "requests_out"),
}
KEEPING = {leaf.name for leaf in leaves(Keeping)}


def command(verb: str) -> Any:
    """The verb as the command line has it."""
    found: Any = typer.main.get_command(app)
    for word in verb.split():
        assert isinstance(found, TyperGroup)
        found = found.get_command(typer.Context(found), word)
    return found


def fields_of(verb: str) -> dict[str, Leaf]:
    return {leaf.name: leaf for leaf in leaves(question_type(verb))}


@pytest.mark.parametrize("verb", QUESTIONS)
def test_the_options_of_a_verb_are_the_fields_of_its_question(verb: str) -> None:
    of, found = fields_of(verb), {each.name: each for each in command(verb).params}
    beside = {f"{name}_argument" for name, leaf in of.items() if leaf.about.argument}
    assert beside <= found.keys()
    assert found.keys() - beside - (FACE - of.keys()) - KEEPING == of.keys()
    for name, leaf in of.items():
        typed = found[name]
        assert typed.required == (leaf.required and not leaf.about.argument)
        if not leaf.about.positional:
            assert f"--{leaf.option}" in typed.opts
        assert as_options(sentence(leaf.about)) in typed.help
        default = () if typed.default is None and leaf.default == () else typed.default
        assert leaf.required or leaf.about.reads is not None or default == leaf.default


@pytest.mark.parametrize("verb", QUESTIONS)
def test_the_signature_of_a_question_is_its_fields_and_help_says_each(verb: str) -> None:
    of = question_type(verb)
    assert list(inspect.signature(of).parameters) == [each.name for each in fields(of)]
    for name, leaf in fields_of(verb).items():
        if not leaf.within:
            assert f"    {name}: {leaf.about.help.rstrip('.')}" in (of.__doc__ or "")


@pytest.mark.parametrize("verb", QUESTIONS)
def test_the_schema_of_a_question_is_its_fields(verb: str) -> None:
    schema, of = question_schema(question_type(verb)), fields_of(verb)
    assert schema["properties"].keys() == {"verb", *of}
    assert schema["required"] == ["verb", *(name for name, leaf in of.items() if leaf.required)]
    for name, leaf in of.items():
        said = schema["properties"][name]
        assert said["description"] == sentence(leaf.about)
        assert said.get("minimum") == leaf.about.least and said.get("exclusiveMinimum") == leaf.about.above
        assert said.get("enum", []) == list(leaf.about.choices)


@pytest.mark.parametrize("verb", QUESTIONS)
def test_the_form_of_the_page_is_the_fields_that_it_may_set(verb: str) -> None:
    of = [leaf for leaf in fields_of(verb).values() if leaf.about.on_page]
    shown = {form_field.name: form_field for form_field in form_fields(verb)}
    assert list(shown) == [leaf.option for leaf in of if not leaf.about.positional]
    assert set(OFFERED[verb].options) >= set(shown)
    for leaf in of:
        if not leaf.about.positional:
            form = shown[leaf.option]
            assert form.help == sentence(leaf.about) and form.basic == leaf.about.basic
            assert form.label in (leaf.about.label, sentence(leaf.about).rstrip("."))
            assert form.choices[: len(leaf.about.choices)] == list(leaf.about.choices)


@pytest.mark.parametrize("verb", QUESTIONS)
def test_at_most_ten_options_come_first(verb: str) -> None:
    basic = [leaf.name for leaf in fields_of(verb).values() if leaf.about.basic]
    assert len(basic) <= 10, "the ten that most people need; the others are advanced"


@pytest.mark.parametrize("verb", QUESTIONS)
def test_no_option_of_a_question_is_stated_twice(verb: str) -> None:
    """Neither the module of the verb nor the list of the page names an option that the question has."""
    names = {f"--{leaf.option}" for leaf in fields_of(verb).values()}
    module = command(verb).callback.__module__.replace(".", "/") + ".py"
    texts = [
        node.value
        for node in ast.walk(ast.parse((ROOT / module).read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    declared = {part for text in texts for part in re.findall(r"^--[a-z0-9-]+$", text)}
    assert not names & declared
    listed = (ROOT / "tangram_sim/web/verbs.py").read_text()
    assert f'"{verb}": OfferedVerb(' not in listed


def asked(verb: str, words: list[str]) -> Any:
    """The question that the command line makes of some words."""
    context = command(verb).make_context(verb, words, resilient_parsing=False)
    of = question_type(verb)
    values = {leaf.name: context.params[leaf.name] for leaf in leaves(of)}
    return built(of, {name: tuple(each) if isinstance(each, list) else each for name, each in values.items()})


SECONDS = st.floats(1e-3, 1e9, allow_nan=False)


@settings(deadline=None)  # a busy machine
@given(
    mtbf=SECONDS,
    block=st.floats(0, 1e6),
    period=st.none() | SECONDS,
    policy=st.sampled_from(["restart", "shrink"]),
    sample=st.integers(0, 10**9),
    hwdb=st.lists(st.sampled_from(["a", "b c"]), max_size=2),
)
def test_a_question_is_the_same_from_its_file_and_from_its_command_line(
    mtbf: float, block: float, period: float | None, policy: str, sample: int, hwdb: list[str]
) -> None:
    said = {"verb": "goodput", "mtbf_s": mtbf, "checkpoint_s": block, "period_s": period}
    question = question_of({**said, "policy": policy, "sample": sample, "hwdb": hwdb})
    assert question_of(question.given) == question
    assert asked("goodput", question.words[1:]) == question


def test_a_question_is_read_from_its_file_and_from_an_answer(tmp_path: Any) -> None:
    question: Any = question_of({"verb": "goodput", "mtbf-s": 36000, "checkpoint_s": 60})
    (tmp_path / "asked.yaml").write_text(question_text(question))
    (tmp_path / "answer.json").write_text(question.answer().model_dump_json())
    assert read_question(tmp_path / "asked.yaml") == read_question(tmp_path / "answer.json") == question


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ({"mtbf_s": 3}, "say which verb"),
        ({"verb": "goodput", "mtbf": 3}, "unknown field of goodput in question 'mtbf'. Nearest: mtbf_s"),
        ({"verb": "good"}, "unknown question 'good'. Nearest: goodput"),
        ({"verb": "goodput", "mtbf_s": True, "checkpoint_s": 3}, "mtbf_s: "),
        ({"verb": "goodput", "mtbf_s": "soon", "checkpoint_s": 3}, "mtbf_s: "),
        ({"verb": "goodput", "mtbf_s": -1, "checkpoint_s": 3}, "give seconds, above zero"),
        ({"verb": "goodput", "mtbf_s": 9, "checkpoint_s": 3, "policy": "wait"}, "unknown policy 'wait'"),
        ({"verb": "goodput", "mtbf_s": 9}, "give `checkpoint_s=SECONDS` beside `mtbf_s=`"),
    ],
)
def test_a_file_that_is_no_question_is_refused_in_words(said: dict[str, Any], fault: str) -> None:
    with pytest.raises(TangramError) as error:
        question_of(said)
    assert fault in str(error.value)


def test_a_file_that_holds_no_question_is_refused(tmp_path: Any) -> None:
    (tmp_path / "a.yaml").write_text("[1, 2]\n")
    with pytest.raises(BadInputError, match="a question is a mapping"):
        read_question(tmp_path / "a.yaml")
