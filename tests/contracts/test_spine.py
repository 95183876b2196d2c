"""One grammar for all verbs: fleets, additions, prices, old spellings, files of questions."""

import json
from pathlib import Path
from typing import Any

import pytest

from tangram_sim import written
from tangram_sim.errors import BadInputError
from tangram_sim.fields import leaves
from tangram_sim.hwdb import Hwdb
from tangram_sim.questions.gpu_prices import usd_by_gpu
from tangram_sim.questions.question import QUESTIONS, question_type
from tangram_sim.questions.serve_what_if import notes_on, purchases
from tests.commands import tangram

HWDB = Hwdb.load()
SEARCHES = ("compare", "plan", "purchase", "what-if")


@pytest.mark.parametrize(
    ("text", "gpus", "usd"),
    [
        ("H100x8:2", [("H100-SXM5-80GB", 16)], 0.0),
        ("H100x8:1@400", [("H100-SXM5-80GB", 8)], 0.0),
        ("L40S:4", [("L40S", 4)], 0.0),
        ("L40S:4@0.9", [("L40S", 4)], 0.9),
        ("H100:2+L40Sx4:1", [("H100-SXM5-80GB", 2), ("L40S", 4)], 0.0),
    ],
)
def test_additions_to_a_service_are_nodes_as_everywhere_or_single_gpus(
    text: str, gpus: list[tuple[str, int]], usd: float
) -> None:
    found = purchases(text, HWDB)
    assert [(each.gpu, each.count) for each in found] == gpus
    assert found[0].usd_per_hour == usd


def test_what_stands_behind_an_at_is_said_where_it_is_a_price_or_not_used() -> None:
    assert notes_on("L40S:4", HWDB) == notes_on("H100x8:1", HWDB) == []
    assert "write `price=L40S=0.9`" in notes_on("L40S:4@0.9", HWDB)[0]
    assert "not used" in notes_on("H100x8:1@400", HWDB)[0]


@pytest.mark.parametrize("text", ["L40S", "L40S:0", "L40S:x", "L40S:4@0", "L40S:4@dear", ""])
def test_other_additions_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInputError, match="NODE:COUNT"):
        purchases(text, HWDB)


def test_a_price_of_a_gpu_that_is_not_in_the_question_is_an_error() -> None:
    kinds = {"L40S", "H100-SXM5-80GB"}
    assert usd_by_gpu(["L40S=0.9", "H100=2"], kinds, HWDB) == {"L40S": 0.9, "H100-SXM5-80GB": 2.0}
    with pytest.raises(BadInputError, match="no A100-SXM4-80GB in this question, which has H100"):
        usd_by_gpu(["A100-80GB=2"], kinds, HWDB)
    done = tangram("rl", "estimate", "llama3-8b", "H800x8:1", "--price", "H100=2")
    assert done.code == 2 and "which has H800" in done.err


@pytest.mark.parametrize("verb", SEARCHES)
def test_verbs_that_search_training_plans_share_processes_and_dask(verb: str) -> None:
    names = {leaf.option for leaf in leaves(question_type(verb))}
    assert {"jobs", "dask", "time-limit"} <= names


@pytest.mark.parametrize("verb", [verb for verb in QUESTIONS if verb.endswith("export")])
def test_exports_know_for_and_to(verb: str) -> None:
    spelled: Any = next(leaf for leaf in leaves(question_type(verb)) if leaf.name == "to")
    assert set(spelled.spellings) == {"--to", "--for"}


def test_the_old_name_of_train_replay_works_and_says_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("time_s,event,node\n0,add,n0\n0,add,n1\n1800,remove,n1\n")
    (tmp_path / "speeds.csv").write_text("nodes,samples_per_s\n1,1\n2,2\n")
    words = ("m", tmp_path / "trace.csv", "--speeds", tmp_path / "speeds.csv", "--until-s", 3600, "--json")
    old, new = tangram("replay-trace", *words), tangram("train", "replay", *words)
    assert old.code == new.code == 0, old.err + new.err
    assert old.out == new.out and json.loads(new.out)["question"]["verb"] == "train replay"
    assert "is now `tangram train replay`" in old.err and "is now" not in new.err


@pytest.mark.parametrize(
    ("text", "meant"), [("1M", 1 << 20), ("1m", 1 << 20), ("0.5M", 1 << 19), ("8k", 8192)]
)
def test_lengths_in_millions_are_powers_of_two_like_those_in_thousands(text: str, meant: int) -> None:
    assert written.whole(text) == meant


@pytest.mark.parametrize("budget", ["5eur", "-1", "0", "nan", "many"])
def test_a_budget_that_is_no_dollars_is_refused_with_an_example(budget: str) -> None:
    done = tangram("purchase", "llama3-8b", "none", f"--budget={budget}")
    assert done.code == 2 and "give US dollars above zero, e.g. 40000, 250k or $1.5M" in done.err


def test_an_answer_of_a_purchase_is_asked_again(tmp_path: Path) -> None:
    (tmp_path / "offers.yaml").write_text("offers: [{node: p4d.24xlarge, most: 1}]\n")
    asked = tangram(
        *("purchase", "gpt3-125m", "DGX-H100:1", "--catalogue", tmp_path / "offers.yaml"),
        *("--effort", "quick", "--jobs", 1, "--json"),
    )
    assert asked.code == 0, asked.err
    (tmp_path / "answer.json").write_text(asked.out)
    again = tangram("run", tmp_path / "answer.json", "--json")
    assert again.code == 0, again.err
    first, second = json.loads(asked.out), json.loads(again.out)
    assert first["question"] == second["question"] and first["front"] == second["front"]
