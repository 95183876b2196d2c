"""JSON from outside: one place reads it, and what cannot be read ends in one message, whoever asks."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tangram_validate.mixed_runs.hardware import cluster_of
from tangram_validate.mixed_runs.seats import block_bounds, replicas_of
from tangram_validate.published.cells import CellError, Cells

from tangram_sim.datafiles import parse_json, read_json
from tangram_sim.errors import BadInputError
from tangram_sim.export import deepspeed, rankmap
from tangram_sim.export.service import router_weights
from tangram_sim.hwdb import Hwdb
from tangram_sim.hwdb.kubernetes_inventory import from_k8s
from tests.places import ROOT

HOSTILE = {
    "nested": "[" * 100_000,
    "digits": "[" + "9" * 5000 + "]",
    "cut": '{"a": [1',
}
READERS: dict[str, Callable[[str], object]] = {
    "rank map": rankmap.read,
    "DeepSpeed": lambda text: deepspeed.read(text, "{}", ()),
    "DeepSpeed's pipeline": lambda text: deepspeed.read("{}", text, ()),
    "router's weights": router_weights.read,
    "kubectl": lambda text: from_k8s(text, Hwdb.load(()), "nodes.json"),
    "a row's cluster": lambda text: cluster_of(Cells({"cluster": text}), Hwdb.load(())),
    "a row's layers": lambda text: block_bounds(text, 24, 4),
    "a row's placement": lambda text: replicas_of(f"[{text}", ["T4"], 2, 1, 1, Hwdb.load(())),
}


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("reader", READERS)
def test_what_cannot_be_read_is_refused_in_words(reader: str, hostile: str) -> None:
    with pytest.raises((BadInputError, CellError)) as raised:
        READERS[reader](HOSTILE[hostile])
    assert 0 < len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, r"x\.json: not JSON that can be read: nested too deeply"),
        ("9" * 5000, r"x\.json: not JSON that can be read: Exceeds the limit"),
        ('{"a": 1,\n "b" 2}', r"x\.json, line 2, column 6: not JSON: Expecting ':'"),
    ],
)
def test_the_place_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(BadInputError, match=words):
        read_json(tmp_path / "x.json")


def test_a_line_of_a_file_is_named_once() -> None:
    with pytest.raises(BadInputError, match=r"^runs\.jsonl, line 7, column 2: not JSON: "):
        parse_json("[x", "runs.jsonl", line=7)


def test_nothing_else_of_the_package_reads_json() -> None:
    """`json.loads` raises RecursionError, too, which its callers forget."""
    found = [
        path.name
        for path in (ROOT / "tangram_sim").rglob("*.py")
        if re.search(r"\bjson\.loads?\(", path.read_text(encoding="utf-8"))
    ]
    assert found == ["datafiles.py"]


def test_stages_that_are_none_are_malformed() -> None:
    whole = '{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "train_batch_size": 1}'
    pipeline = '{"topology": {"axes": ["pipe", "data", "model"], "dims": [0, 1, 1]}, "layers": 4}'
    with pytest.raises(BadInputError, match="malformed"):
        deepspeed.read(whole, pipeline, (0,))
