"""`tangram serve estimate`: keys, units, answers that are none, loads in bulk."""

import json

import numpy as np
import pytest

from tangram_sim.hwdb import Hwdb
from tangram_sim.studies.replica_question import ReplicaQuestion
from tangram_sim.studies.serving_estimate import estimate_many
from tests.commands import tangram as run

BASE = ("serve", "estimate", "llama3-70b", "--gpu", "H100", "--tp", "4", "--precision", "fp8")
KEYS = {
    *("tpot_s", "ttft_s", "e2e_s", "output_tok_s", "kv_tokens", "kv_blocks", "step_s", "limited_by"),
    *("intervals", "assumptions"),
}


def test_keys_and_sums() -> None:
    found = json.loads(run(*BASE, "--concurrency", "64", "--isl", "1024", "--osl", "256", "--json").out)
    assert set(found) >= KEYS
    assert found["e2e_s"] == pytest.approx(found["ttft_s"] + 255 * found["tpot_s"])
    assert found["output_tok_s"] == pytest.approx(64 * 256 / found["e2e_s"])
    assert found["kv_tokens"] == 16 * found["kv_blocks"]
    assert sum(found["parts_s"].values()) == pytest.approx(found["tpot_s"], rel=1e-6)
    for low, high in found["intervals"].values():
        assert low < high
    assert found["assumptions"]["engine_defaults"]["max_batched_tokens"] == 8192


def test_settings_are_told_from_defaults() -> None:
    found = json.loads(run(*BASE, "--max-num-seqs", "8", "--concurrency", "64", "--json").out)
    assert found["assumptions"]["engine_settings"] == {"max_sequences": 8}
    assert found["running"] == 8 and "wait" in found["limited_by"]
    assert found["ttft_s"] > 7 * found["tpot_s"]


def test_overload_says_by_how_much_and_what_would_carry_it() -> None:
    found = json.loads(run(*BASE, "--rate", "60", "--json").out)
    assert found["overloaded"]
    assert found["request_rate"] == pytest.approx(found["greatest_request_rate"])
    assert "the queue grows" in found["verdict"]
    calm = json.loads(run(*BASE, "--rate", "1", "--json").out)
    assert not calm["overloaded"] and not calm["verdict"]


def test_the_nearer_to_saturation_the_wider_the_interval() -> None:
    """An open loop's end to end time is as unsure as iterations, and more where requests queue up."""

    def width(rate: float, name: str) -> float:
        found = json.loads(run(*BASE, "--rate", f"{rate}", "--json").out)
        low, high = found["intervals"][name]
        assert low < found[name] < high
        return high / low

    most = json.loads(run(*BASE, "--rate", "1", "--json").out)["greatest_request_rate"]
    widths = [width(part * most, "e2e_s") for part in (0.02, 0.5, 0.8)]
    assert widths == sorted(widths) and widths[2] > 2.0 * widths[0]
    assert widths[0] > 0.99 * width(0.02 * most, "tpot_s")


def test_an_overloaded_replica_says_so_first_even_when_quiet() -> None:
    lines = run(*BASE, "--rate", "60", "--quiet").out.splitlines()
    assert lines[0].startswith("cannot keep up: serves ") and "of 60 requests/s" in lines[0]
    assert any("TTFT, once admitted" in line for line in lines)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--engine", "tgi"), "unknown engine"),
        (("--gpu", "H1000"), "unknown GPU"),
        (("--precision", "fp5"), "unknown precision"),
        (("--kv-dtype", "fp5"), "unknown type of KV cache"),
        (("--tp", "1", "--precision", "bf16"), "does not fit"),
        (("--tp", "0"), "--tp 0: give a whole number, 1 or more"),
        (("--ep", "3"), "divides"),
        (("--isl", "0"), "--isl 0"),
        (("--isl", "nan"), "--isl"),
        (("--isl", "200000"), "was made for"),
        (("--concurrency", "0"), "--concurrency 0"),
        (("--rate", "-1"), "--rate -1"),
        (("--cached", "5000"), "--cached"),
        (("--price", "0"), "--price 0"),
        (("--memory-fraction", "1.5"), "--memory-fraction"),
        (("--acceptance", "2", "--drafts", "2"), "a probability"),
    ],
)
def test_no_answer_is_one_message_and_exit_2(options: tuple[str, ...], words: str) -> None:
    done = run(*BASE, *options)
    assert done.code == 2
    assert words in done.err and "Traceback" not in done.err


def test_many_loads_at_once_are_answered_as_each_alone() -> None:
    """The batch form (benchmarks.estimate measures its speed)."""
    question = ReplicaQuestion("llama3-70b", "H100", tp=4, precision="fp8")
    hwdb = Hwdb.load()
    clients = np.geomspace(1, 500, 5000)
    estimate_many(question, hwdb, {"concurrency": clients[:2]})
    found = estimate_many(question, hwdb, {"concurrency": clients, "isl": np.full(5000, 2048.0)})
    item = json.loads(run(*BASE, "--concurrency", "500", "--isl", "2048", "--json").out)
    assert found["tpot_s"][-1] == pytest.approx(item["tpot_s"])
