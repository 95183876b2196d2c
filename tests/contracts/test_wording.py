"""The library names arguments as Python writes them; the command line alone says --options."""

import ast
import re
from functools import cache
from pathlib import Path

import click
import pytest
import typer
from typer.core import TyperGroup

import tangram_sim as ts
from tangram_sim.cli.main import app
from tangram_sim.cli.wording import as_options, option_of
from tests.commands import tangram
from tests.places import ROOT

PACKAGES = (ROOT / "tangram_sim", ROOT / "validate/tangram_validate")
FLAG = re.compile(r"(?<![\w-])--[a-z{]")
# Commands of others and our own by name, in backticks, whatever their options.
COMMANDS = re.compile(r"`[^`]*--[^`]*`")
OTHERS = {  # who writes or quotes options of other programs
    "export/checking.py",
    "export/flagscale.py",
    "export/folder.py",
    "fields.py",
    "export/launch.py",
    "export/megatron.py",
    "export/megatron_model.py",
    "export/service/commands.py",
    "export/torchtitan.py",
    "parallelizers/external.py",
    "questions/question.py",
    "reports/page.py",
    "serving/bench_json.py",
}
ARGUMENT = re.compile(r"`([a-z][a-z0-9_]*)=[^`\n]*`")
# Arguments of Python that the command line has in another form.
NO_OPTION = {"to"}


@cache
def _texts(path: Path) -> list[str]:
    """String constants of a module that people may read: no docstrings, no descriptions of options."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    quiet = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
            "add_argument",
            "Field",
            "option",
            "about",
        ):
            quiet |= {id(part) for part in ast.walk(node)}
    joined = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found = [
        "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr) and id(node) not in quiet
    ]
    return found + [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in quiet | joined
    ]


COMMAND_LINE = {"cli", "web", "testbed"}  # the web page writes command lines; the testbed has no Python face
MODULES = {
    str(path.relative_to(package)): path
    for package in PACKAGES
    for path in sorted(package.rglob("*.py"))
    if path.relative_to(package).parts[0] not in COMMAND_LINE
}


def test_no_message_of_the_library_says_an_option() -> None:
    said = {
        f"{name}: {text.strip()}"
        for name, path in MODULES.items()
        if name not in OTHERS
        if FLAG.search(path.read_text(encoding="utf-8"))  # spares parsing
        for text in _texts(path)
        if FLAG.search(COMMANDS.sub("", text))
    }
    assert not said


def _options(command: click.Command) -> set[str]:
    """Every option of a command and of those below it, of verbs that come by entry point too."""
    found = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    if isinstance(command, TyperGroup):
        asking = typer.Context(command)
        for name in command.list_commands(asking):
            found |= _options(command.get_command(asking, name))
    return found


def test_every_argument_named_in_a_message_is_an_option() -> None:
    known = _options(typer.main.get_command(app)) | {option_of(name) for name in NO_OPTION}
    said = (path for path in MODULES.values() if ARGUMENT.search(path.read_text(encoding="utf-8")))
    named = {name for path in said for text in _texts(path) for name in ARGUMENT.findall(text) if name}
    assert len(named) > 40
    assert {name for name in named if option_of(name) not in known} == set()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("`global_batch=0`: give a whole number", "--global-batch 0: give a whole number"),
        ("`fixed=` tp=3: does not divide", "--fix tp=3: does not divide"),
        ("raise `time_limit_s=`", "raise --time-limit"),
        ("`sequence_parallel=True`: `tp=3` does", "--sequence-parallel: --tp 3 does"),
        ("leave `gpu` out, see `tangram hw list`", "leave `gpu` out, see `tangram hw list`"),
    ],
)
def test_the_command_line_says_options(said: str, shown: str) -> None:
    assert as_options(said) == shown


def test_one_error_in_both_forms() -> None:
    with pytest.raises(ts.BadInputError) as error:
        ts.estimate("gpt3-350m", "azure-c1-t4x4-v100x4", ts.Job(global_batch=16), ts.Uniform(tp=3))
    assert "`tp=3` does not divide" in str(error.value)
    told = tangram("estimate", "gpt3-350m", "azure-c1-t4x4-v100x4", "--global-batch", "16", "--tp", "3")
    assert told.code == 2
    assert "--tp 3 does not divide" in told.err
    assert "`" not in told.err
