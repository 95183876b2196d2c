"""What a page's request may run: verbs, options and values that are offered, and nothing else."""

import multiprocessing
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.datafiles import shipped
from tangram_sim.errors import BadInputError, UnknownNameError
from tangram_sim.web.documents import VerbRequest
from tangram_sim.web.sandbox import put_up
from tangram_sim.web.verbs import OFFERED, command_words
from tests.commands import tangram


def words(
    verb: str = "plan", *arguments: str, files: dict[str, str] | None = None, **options: object
) -> list[str]:
    named = {name.replace("_", "-"): value for name, value in options.items()}
    return command_words(VerbRequest(verb=verb, arguments=list(arguments), options=named, files=files or {}))


def test_a_request_becomes_the_command_line_of_its_verb():
    found = words(
        "plan", "llama3-8b", "cluster.yaml", global_batch=64, one_pipeline=True, bound=False, fix=["tp=4"]
    )
    assert found == [
        "plan", "llama3-8b", "cluster.yaml", "--global-batch=64", "--one-pipeline", "--fix=tp=4", "--json",
    ]  # fmt: skip


@pytest.mark.parametrize("verb", OFFERED)
def test_every_option_offered_is_one_of_the_verb(verb):
    """The page never offers what the command line does not know."""
    told = tangram(*verb.split(" "), "--help", columns=200).out
    known = set(re.findall(r"--[a-z0-9-]+", told))
    always = {item.partition("=")[0] for item in OFFERED[verb].always}
    assert {f"--{option}" for option in OFFERED[verb].options} | always <= known


@pytest.mark.parametrize("verb", ["validate", "calibrate", "web", "hw", "trace generate", ""])
def test_verbs_that_are_not_offered_are_refused_by_name(verb):
    with pytest.raises(UnknownNameError, match="unknown verb"):
        words(verb)


@pytest.mark.parametrize("option", ["hwdb", "parallelizer-command", "cache", "dask", "jobs", "candidates"])
def test_options_that_reach_beyond_the_run_are_not_offered(option):
    with pytest.raises(UnknownNameError, match="unknown option of plan"):
        command_words(VerbRequest(verb="plan", options={option: "1"}))


@given(st.text(max_size=20), st.sampled_from(["/", "\\", "\0", "\n", "..", "-x", "C:x", "~/"]), st.booleans())
def test_no_value_names_a_place(text, sign, before):
    """Whatever else it says, a value with a separator, a drive or the look of an option does not pass."""
    value = sign + text if before or sign in ("..", "-x", "C:x", "~/") else text + sign
    with pytest.raises(BadInputError, match="a plain word is wanted"):
        words("plan", value, "azure-c1")
    with pytest.raises(BadInputError, match="a plain word is wanted"):
        words("plan", "llama3-8b", "azure-c1", order=value)


@pytest.mark.parametrize(
    "name", ["../x.yaml", "/x.yaml", ".hidden", "x", "a/b.json", "x.yaml\n", "-o.yaml", ""]
)
def test_files_have_plain_names(name):
    with pytest.raises(BadInputError, match="plain name"):
        words("islands", "azure-c1", files={name: ""})


def _behind_the_fence(line, own: str, beyond: str) -> None:
    put_up(Path(own))
    Path(own, "mine.txt").write_text("mine")
    found = [Path(own, "mine.txt").read_text()]
    for attempt in (
        lambda: Path(beyond).read_text(),
        lambda: Path(own, "..", Path(beyond).name).read_text(),
        lambda: Path(own, "link").read_text(),
        lambda: Path(beyond + ".new").write_text("no"),
        lambda: Path(beyond).unlink(),
        lambda: Path(own, "mine.txt").rename(beyond + ".moved"),
        lambda: os.truncate(beyond, 0),
        lambda: Path(beyond).chmod(0),
        lambda: Path(shipped("hwdb"), "new.csv").write_text("no"),
        lambda: __import__("os").system("true"),
        lambda: __import__("subprocess").run(["true"], check=False),
        lambda: __import__("socket").create_connection(("127.0.0.1", 9)),
    ):
        try:
            attempt()
            found.append("done")
        except BadInputError as error:
            found.append(str(error))
    line.send(found)


def test_a_process_behind_the_fence_reads_writes_starts_and_calls_nothing_else(tmp_path):
    own, beyond = tmp_path / "own", tmp_path / "beyond.txt"
    own.mkdir()
    beyond.write_text("secret")
    (own / "link").symlink_to(beyond)
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_behind_the_fence, args=(there, str(own), str(beyond))
    )
    process.start()
    first, *refused = here.recv()
    process.join()
    assert first == "mine"
    assert len(refused) == 12
    assert all("not a file of this request" in item for item in refused[:9]), refused
    assert all("starts no program" in item for item in refused[9:]), refused
    assert beyond.read_text() == "secret"
