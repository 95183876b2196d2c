"""`tangram hw add-gpu`: rows of one's own, what they assume, and names and figures that are refused."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest
import typer

from tangram_sim.cli import add_gpu
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.hwdb import Hwdb, own_gpu
from tests.commands import CLUSTER, tangram

HWDB = Hwdb.load()
TODAY = date(2027, 1, 2)
FIGURES = {"bf16_tflops": "800", "memory_gb": "64", "memory_gb_per_s": "4000"}
OPTIONS = ("--bf16-tflops", 800, "--memory-gb", 64, "--memory-gb-per-s", 4000)


def test_what_is_given_stays_and_the_rest_is_named() -> None:
    made = own_gpu.own_gpu("X900", FIGURES | {"link": "nvlink4"}, HWDB, TODAY)
    assumed = {assumed_cell.column for assumed_cell in made.assumed}
    assert assumed.isdisjoint({*FIGURES, "link"})
    assert {column for column, cell in made.row.cells.items() if cell} <= assumed | {*FIGURES, "link", "name"}
    assert made.row["link"] == "NVLink4" and made.row.number("link_gb_per_s") == 450
    assert made.row.number("fp16_tflops") == 800 and made.row.number("fp32_tflops") == 50
    assert made.row["year"] == "2027" and "2027-01-02" in made.row["source"]
    # No bf16 units are made up for a GPU whose fp16 rate was given, and no link.
    old = own_gpu.own_gpu(
        "X1", {"fp16_tflops": "20", "memory_gb": "8", "memory_gb_per_s": "300"}, HWDB, TODAY
    )
    assert not old.row["bf16_tflops"] and old.row["link"] == "none" and not old.row.number("link_gb_per_s")


@pytest.mark.parametrize(
    ("name", "cells", "said"),
    [
        ("X900", {"bf16_tflops": "800"}, "memory_gb="),
        ("X900", {"memory_gb": "64", "memory_gb_per_s": "4000"}, "bf16_tflops="),
        ("X900", FIGURES | {"memory_gb": "sixteen"}, "column memory_gb: 'sixteen'"),
        ("X900", FIGURES | {"bf16_tflops": "-1"}, "above zero"),
        ("X900", FIGURES | {"bf16_tflops": "8e14"}, "can be meant"),
        ("X900", FIGURES | {"link": "NVLnk4"}, "NVLink4"),
        ("X900", FIGURES | {"link_gb_per_s": "450"}, "over which link"),
        ("h100 sxm5 80gb", FIGURES, "is H100-SXM5-80GB of"),
        ("A+B", FIGURES, "no name for a GPU"),
        ("arch:Hopper", FIGURES, "no name for a GPU"),
        ("x\x1b[31m", FIGURES, "no name for a GPU"),
    ],
)
def test_what_cannot_be_a_gpu_is_refused(name: str, cells: dict[str, str], said: str) -> None:
    with pytest.raises(TangramError, match=said.replace("(", r"\(")):
        own_gpu.own_gpu(name, cells, HWDB, TODAY)


def test_two_gpus_go_into_one_folder_and_plans_use_them(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    first = tangram("hw", "add-gpu", "X900", *OPTIONS, "--link", "NVLink4", "-o", folder)
    assert first.code == 0 and "assumed" in first.out and "any GPU" in first.out
    second = tangram(
        "hw", "add-gpu", "Y1", *OPTIONS, "--power-w", 300, "--efficiency", 0.5, "-o", folder, "--json"
    )
    assert (
        second.code == 0
        and second.json["efficiency"] | {"of": "Y1", "value": 0.5} == second.json["efficiency"]
    )
    assert [Path(item).name for item in second.json["files"]] == ["gpus.csv", "Y1.csv"]
    found = Hwdb.load([folder])
    assert found.gpu("X900").peak_flop_per_s("bf16") == 8e14 and found.gpu("Y1").power_w == 300
    assert not found.gpu("X900").power_w and not found.gpu("Y1").measured
    again = tangram("hw", "add-gpu", "x900", *OPTIONS, "-o", folder)
    assert again.code == 2 and "is X900 of" in again.err and "Traceback" not in again.err
    cluster = tmp_path / "lab.yaml"
    cluster.write_text(CLUSTER.replace("T4", "X900"))
    assert "X900" in tangram("islands", cluster, "--hwdb", folder).out


def test_hopper_lends_to_a_new_gpu_of_its_generation(tmp_path: Path) -> None:
    made = tangram("hw", "add-gpu", "X2", *OPTIONS, "--architecture", "Hopper", "-o", tmp_path, "--json").json
    assert made["efficiency"]["of"] == "arch:Hopper"
    assert "architecture" not in {item["column"] for item in made["assumed"]}


def test_questions_are_asked_on_a_terminal_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = tangram("hw", "add-gpu", "X900", "--memory-gb", 64, "-o", tmp_path / "a")
    assert silent.code == 2 and "--bf16-tflops" in silent.err and not (tmp_path / "a").exists()
    answers = {"Dense bf16": "800", "bandwidth": "4000"}
    asked: list[str] = []

    def prompt(question: str, **_: Any) -> str:
        asked.append(question)
        return next(
            (answer for word, answer in answers.items() if word in question.split(",", maxsplit=1)[0]), ""
        )

    monkeypatch.setattr(add_gpu, "_at_terminal", lambda: True)
    monkeypatch.setattr(typer, "prompt", prompt)
    found = tangram("hw", "add-gpu", "X900", "--memory-gb", 64, "-o", tmp_path / "b", "--json")
    assert found.code == 0 and found.json["gpu"]["memory_gb_per_s"] == "4000"
    assert len(asked) == 4 and not any("sold" in item or "All its links" in item for item in asked)


@pytest.mark.parametrize("share", [0, 1.1, "nan"])
def test_a_share_of_the_peak_is_a_share(share: object, tmp_path: Path) -> None:
    found = tangram("hw", "add-gpu", "X900", *OPTIONS, "--efficiency", share, "-o", tmp_path / "a")
    assert found.code == 2 and "--efficiency" in found.err and not (tmp_path / "a").exists()


def test_a_broken_table_of_ones_own_is_not_overwritten(tmp_path: Path) -> None:
    table = tmp_path / "gpus.csv"
    table.write_text("name,memory_gb\nT4,sixteen\n")
    found = tangram("hw", "add-gpu", "X900", *OPTIONS, "-o", tmp_path)
    assert found.code == 2 and "line 2" in found.err and table.read_text().endswith("sixteen\n")
    with pytest.raises(BadInputError):
        Hwdb.load([tmp_path])


def test_a_folder_that_does_not_read_is_left_as_it_was(tmp_path: Path) -> None:
    """All is held to the rules before anything is written: a broken table beside the new row, too."""
    folder = tmp_path / "mine"
    (folder / "efficiency").mkdir(parents=True)
    (folder / "efficiency" / "own.csv").write_text("gpu,dtype\nX1,bf16\n")
    before = sorted(path.name for path in folder.rglob("*"))
    refused = tangram("hw", "add-gpu", "X900", *OPTIONS, "--efficiency", "0.5", "-o", folder)
    assert refused.code == 2 and f"{folder}/efficiency/own.csv" in refused.err
    assert sorted(path.name for path in folder.rglob("*")) == before
