"""Completion by the shell: wherever a verb takes a model, a cluster or nodes, their names are offered."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tangram_sim.fields import leaves
from tangram_sim.questions.question import QUESTIONS, question_type

NAMED = ("MODEL", "CLUSTER", "FLEET")  # place holders of arguments that take a shipped name
ARGUMENTS = [
    (verb, leaf)
    for verb in QUESTIONS
    for leaf in leaves(question_type(verb))
    if leaf.about.positional.startswith(NAMED)
]


@pytest.mark.parametrize(("verb", "leaf"), ARGUMENTS, ids=lambda item: getattr(item, "name", item))
def test_every_argument_that_takes_a_shipped_name_offers_them(verb, leaf):
    assert leaf.about.suggested is not None
    assert {"llama3-8b", "dgx-a100-h100"} & set(leaf.about.suggested())


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("serve plan llama3-8b --fleet dgx", "dgx-a100-h100"),
        ("what-if llama3-8b azure-c1 --add p4d.", "p4d.24xlarge"),
        ("rl plan llama3-8", "llama3-8b"),
        ("serve export plan.json --to sg", "sglang"),
        ("goodp", "goodput"),
    ],
)
def test_the_shell_is_answered(typed, offered):
    program = Path(sys.executable).parent / "tangram"
    if not program.exists():
        pytest.skip("the command is not installed beside this Python")
    words = f"tangram {typed}"
    asked = {"_TANGRAM_COMPLETE": "complete_bash", "COMP_WORDS": words}
    asked["COMP_CWORD"] = str(len(words.split()) - 1)
    found = subprocess.run(
        [program], env=os.environ | asked, capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout.split() == [offered]
