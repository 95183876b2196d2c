"""What reaches a terminal: no control characters from files, no endless messages, one rule for exit codes."""

import json
from pathlib import Path

import pytest

from tangram_sim.cli.printable import LONGEST, shortened
from tangram_sim.naming import printable
from tests.commands import MODEL, files, tangram

STEERING = "\x1b[31mred\x9b0m\x07\u202eback\r"


def steers(text: str) -> bool:
    return any((not char.isprintable() and char not in "\n") or char == "\u202e" for char in text)


def test_control_characters_are_written_as_escapes() -> None:
    assert printable(STEERING) == "\\x1b[31mred\\x9b0m\\x07\\u202eback\\x0d"
    assert printable("two\nlines\tand é") == "two\nlines\tand é"


def test_names_from_files_do_not_steer_the_terminal(tmp_path: Path) -> None:
    """In the answer of a command as in its error message, from YAML as from JSON and CSV."""
    model, cluster = files(tmp_path)
    model.write_text(MODEL.replace("name: tiny", f"name: {json.dumps(STEERING)}"))
    cluster.write_text(f"nodes: [{{count: 1, gpu: {json.dumps(STEERING)}, gpus: 1}}]")
    (tmp_path / "gpus.csv").write_text(f"name,{STEERING}\nx,1\n")
    (tmp_path / f"{STEERING}.json").write_text("{")
    for refused in (
        tangram("models", "show", model),
        tangram("islands", cluster),
        tangram("hw", "list", "--hwdb", tmp_path),
        tangram("models", "show", tmp_path / f"{STEERING}.json"),
        tangram("plan", "--no-such-option" + STEERING),
    ):
        assert refused.code == 2 and refused.out == "" and "[31m" in refused.err
        assert not steers(refused.err)


def test_long_messages_are_cut_with_a_count(tmp_path: Path) -> None:
    text = "begin" + "x" * 10_000 + "end"
    cut = shortened(text)
    assert cut.startswith("begin") and cut.endswith("end") and len(cut) < LONGEST + 60
    left_out = int(cut.split(" characters left out")[0].rpartition("(")[2].replace(",", ""))
    assert len(text) - left_out == LONGEST
    refused = tangram("export", tmp_path / "plan.json", "--to", "y" * 50_000)
    assert refused.code == 2 and len(refused.err) < LONGEST + 200


@pytest.mark.parametrize(
    "value",
    ["!!timestamp x", "!!map x", '!!int ""', "!!bool q", "2020-99-99", "{!!timestamp x : b}", "&a [*a]"],
)
def test_values_that_are_not_what_their_tag_says_are_refused_with_file_and_line(
    value: str, tmp_path: Path
) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(f"nodes: {value}\n")
    refused = tangram("islands", path)
    assert refused.code == 2 and refused.err.startswith(f"error: {path}")


def test_aliases_that_multiply_are_refused_at_once(tmp_path: Path) -> None:
    """Nine lines that stand for 10^9 entries."""
    lines = ["a: &a [x,x,x,x,x,x,x,x,x,x]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]")
    path = tmp_path / "lab.yaml"
    path.write_text("\n".join(lines))
    refused = tangram("islands", path)
    assert refused.code == 2 and "aliases" in refused.err


def test_nobody_answering_is_no_answer(tmp_path: Path) -> None:
    """`compare` ends with 2 and prints every planner's reason, and nothing else."""
    model, cluster = files(tmp_path)
    model.write_text(MODEL.replace("hidden: 512", "hidden: 65536").replace("width: 2048", "width: 900000"))
    for planners, json_too in (("uniform,tangram", ()), ("uniform", ("--json",))):
        refused = tangram("compare", model, cluster, "--planners", planners, *json_too)
        assert (refused.code, refused.out) == (2, "")
        assert all(f"{planner}:" in refused.err for planner in planners.split(","))
