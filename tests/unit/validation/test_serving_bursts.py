"""Bursts as benchmarks run them: commands that started the server, lengths, figures listed twice."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tangram_validate.serving.commands import BenchmarkCommand, launch_command
from tangram_validate.serving.copies import COPIED
from tangram_validate.serving.fitting import FittedRow
from tangram_validate.serving.lengths import sharegpt_lengths, spread_lengths
from tangram_validate.serving.predict import predict
from tangram_validate.serving.reading import DRAFTED, read_rows_as_runs, read_runs
from tangram_validate.serving.runs import BURST, SHAREGPT, RefusedRun, ServedRun
from tangram_validate.serving.tables import as_row, calibrate
from tangram_validate.serving.unstated import LENGTHS

from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.build import precision_of
from tangram_sim.serving.calibration import CalibrationTable

HWDB = Hwdb.load()
TABLE = CalibrationTable.load(HWDB)
BURST_ROW = {
    **{"gpu": "H100-SXM", "model": "Qwen/Qwen3-14B", "precision": "bf16", "engine": "vllm", "tp": "1"},
    **{"scenario": "burst of all prompts at once", "requests": "64", "isl": "217.4", "osl": "201.6"},
    **{"ttft_ms": "900", "tpot_ms": "40", "output_tok_s": "1500", "source": "gpustack/gpustack h100.md"},
}


def read(*changes: dict[str, str]) -> list[ServedRun]:
    found = read_rows_as_runs([BURST_ROW | change for change in changes], HWDB)
    assert all(isinstance(item, ServedRun) for item in found)
    return [item for item in found if isinstance(item, ServedRun)]


@pytest.mark.parametrize(
    ("note", "told"),
    [
        (
            "5. Sizes; vllm serve openai/gpt-oss-20b --max-num-batched-tokens 8192",
            ("openai/gpt-oss-20b", 8192),
        ),
        (
            "1.; python3 -m sglang.launch_server --model-path=Qwen/Q --chunked-prefill-size 512",
            ("Qwen/Q", 512),
        ),
        ("1.; trtllm-serve Qwen/Qwen3-14B", ("Qwen/Qwen3-14B", 0)),
        ("achieved 4.99 req/s; ISL is the client tokenizer mean", ("", 0)),
    ],
)
def test_a_command_says_its_model_and_budget(note: str, told: tuple[str, int]) -> None:
    found = launch_command(note)
    assert (found.model, found.max_batched_tokens) == told


def test_a_command_s_other_flags() -> None:
    note = "2.; vllm serve a/B-FP8 --max-num-seqs=512 --gpu-memory-utilization 0.85 --enable-expert-parallel"
    assert launch_command(note) == BenchmarkCommand("a/B-FP8", 512, 0, 0.85, True)
    assert launch_command("sglang.launch_server --model-path a/B --speculative-num-steps 4").speculative
    assert launch_command("Speculative Decoding; vllm serve a/B --max-num-seqs=512").speculative
    looks = launch_command("sglang.launch_server --model-path a/B --scheduler-recv-interval 30")
    assert looks.recv_interval == 30
    inside = launch_command("vllm serve a/gpt--max-num-seqs=9-x --max-num-batched-tokens 64")
    assert (inside.max_sequences, inside.max_batched_tokens) == (0, 64)


def test_rows_are_read_with_their_command() -> None:
    """A quantised copy named in the command alone, limits, drafts; the row's own columns count first."""
    copy, limits, drafted, stated = read(
        {"note": "2.; vllm serve Qwen/Qwen3-14B-AWQ"},
        {"note": "2.; vllm serve Qwen/Qwen3-14B --max-num-seqs 99 --max-num-batched-tokens 4096"},
        {"note": "2.; vllm serve Qwen/Qwen3-14B --speculative-config x"},
        {"note": "2.; vllm serve Qwen/Qwen3-14B --max-num-seqs 99", "max_num_seqs": "7"},
    )
    assert copy.precision == precision_of("int4", copy.model)
    assert (limits.max_sequences, limits.max_batched_tokens) == (99, 4096)
    assert drafted.doubt == DRAFTED and not limits.doubt
    assert stated.max_sequences == 7


def test_checkpoints_of_gpt_oss_are_mxfp4_whatever_the_row_gives() -> None:
    plain, other = read({"model": "openai/gpt-oss-20b"}, {})
    assert plain.precision == precision_of("mxfp4", plain.model)
    assert other.precision.name == "bf16"


def test_figures_of_two_kinds_of_gpu_are_doubted() -> None:
    """Both rows: one of them has the other's figures. The same figures of one kind are repeats."""
    twice = read({}, {"gpu": "A100-SXM"}, {"tpot_ms": "41"}, {"tpot_ms": "41"})
    assert [served_run.doubt for served_run in twice] == [COPIED, COPIED, "", ""]


def test_gpustack_s_bursts_are_sharegpt_but_for_other_cases() -> None:
    first, other, elsewhere = read(
        {"note": "1. Choosing; vllm serve Qwen/Qwen3-14B"},
        {"note": "Other Benchmark Cases; vllm serve Qwen/Qwen3-14B"},
        {"source": "somebody", "note": "1. Choosing"},
    )
    assert [served_run.dataset for served_run in (first, other, elsewhere)] == [SHAREGPT, "", ""]


@pytest.mark.parametrize(("mean", "least", "most"), [(200.0, 4.0, 1024.0), (10.0, 4.0, 2000.0)])
def test_spread_lengths_have_the_mean_and_stay_within_bounds(mean: float, least: float, most: float) -> None:
    """A truncated exponential: as many tokens as told; far from the upper bound it spreads by its mean."""
    lengths = spread_lengths(1000, mean, least, most)
    assert lengths.mean() == pytest.approx(mean, rel=1e-6)
    assert least <= lengths[0] and lengths[-1] <= most and np.all(np.diff(lengths) > 0)
    assert lengths.std() == pytest.approx(mean - least, rel=0.12)


def test_conversations_keep_to_the_benchmark_s_bounds() -> None:
    prompts, outputs = sharegpt_lengths(1000, 217.4, 201.6)
    assert prompts.mean() == pytest.approx(217.4) and outputs.mean() == pytest.approx(201.6)
    assert prompts.max() <= 1024 and outputs.max() <= 2048 - 217.4
    assert abs(np.corrcoef(prompts, outputs)[0, 1]) < 0.1
    assert np.all(sharegpt_lengths(3, 2.0, 201.6)[0] == 2.0)  # no mean of what is at least 4


@pytest.mark.parametrize("requests", ["1e11", "0.5"])
def test_bursts_that_cannot_be_played_are_refused(requests: str) -> None:
    (found,) = read_rows_as_runs([BURST_ROW | {"requests": requests}], HWDB)
    assert isinstance(found, RefusedRun) and "are played" in found.reason


def test_limits_beyond_any_engine_s_limit_nothing() -> None:
    digits = "9" * 23
    (found,) = read({"note": f"1.; vllm serve a/b --max-num-seqs {digits} --max-num-batched-tokens {digits}"})
    assert found.max_sequences == found.max_batched_tokens == 10**9


OPEN_ROW = {
    **{"scenario": "open loop, trace lengths", "isl": "1024", "osl": "256", "output_tok_s": ""},
    **{"request_rate_rps": "30", "ttft_ms": "900", "tpot_ms": "40"},
}


def first_tokens(*changes: dict[str, str]) -> list[float]:
    """Predicted seconds to first tokens of open loops."""
    found, refused = predict(read(*(OPEN_ROW | change for change in changes)), HWDB, TABLE)
    assert not refused
    return [predicted_run.predicted for predicted_run in found if predicted_run.metric == "ttft"]


def test_the_queue_of_a_load_beyond_the_server_grows_with_what_is_sent() -> None:
    """Twice the requests wait twice as long in the mean, and as (rate / carried - 1) of the time to send."""
    short, long, faster = first_tokens(
        {"requests": "2000"}, {"requests": "4000"}, {"requests": "4000", "request_rate_rps": "60"}
    )
    assert 1.8 * short < long < 2.2 * short
    # Mean waits of N requests: N / 2 x (1 / carried - 1 / rate).
    assert faster - long == pytest.approx(4000 / 2 * (1 / 30 - 1 / 60), rel=0.05)


def test_a_load_that_the_server_carries_does_not_depend_on_what_is_sent() -> None:
    """Nor does one that does not say how much was sent: the steady state."""
    light = {"request_rate_rps": "2"}
    few, many, unsaid = first_tokens(
        light | {"requests": "100"}, light | {"requests": "9000"}, light | {"requests": ""}
    )
    assert few == many == unsaid < 1.0


def test_nothing_is_fitted_to_runs_that_do_not_say_what_ran() -> None:
    """The same rows of fitted parameters with and without runs whose lengths were assumed."""
    closed = OPEN_ROW | {"scenario": "closed loop", "request_rate_rps": ""}
    rows = [closed | {"concurrency": f"{count}", "tpot_ms": f"{20 + count}"} for count in range(1, 31)]
    stated = read(*rows)
    unstated = [replace(run, assumed=("lengths",), measured=(("tpot", 0.5),)) for run in stated]
    assert calibrate([*stated, *unstated], HWDB) == calibrate(stated, HWDB)
    assert calibrate([*stated, *(replace(run, assumed=()) for run in unstated)], HWDB) != calibrate(
        stated, HWDB
    )


FLEET_ROW = {
    **{"model": "meta-llama/Llama-3.3-70B-Instruct", "throughput_rps": "40", "source": "somebody"},
    **{"mean_output_tokens_inferred": "100", "total_requests": "9000"},
    "placement_details": "NVDA:GH200 x8 (TP=4, Total GPUs=32, Weight: 0.9, Reqs: 8000); "
    "NVDA:A100_80G:SXM x1 (TP=4, Total GPUs=4, Weight: 0.1, Reqs: 1000)",
}


def test_a_row_of_a_fleet_is_a_burst_on_the_replicas_that_end_last(tmp_path: Path) -> None:
    """One A100 has as many requests as each GH200, and slower memory: 40 x 100 / 9 tokens a second."""
    path = tmp_path / "fleets.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(FLEET_ROW))
        writer.writeheader()
        writer.writerows(
            [
                FLEET_ROW,
                FLEET_ROW
                | {"placement_details": "GH200 x2 (TP=4, Reqs: 500); A100-80G-SXM x1 (TP=8, Reqs: 100)"},
                FLEET_ROW | {"placement_details": "eight GH200"},
                FLEET_ROW | {"throughput_rps": ""},
            ]
        )
    last, other, unclear, slow = read_runs(path, HWDB)
    assert isinstance(last, ServedRun) and isinstance(other, ServedRun)
    assert (last.gpu, last.tp, last.clients, last.load) == ("A100-SXM4-80GB", 4, 1000.0, BURST)
    assert last.value("output_tok_s") == pytest.approx(40 * 100 / 9)
    assert (other.gpu, other.clients) == ("GH200-96GB", 250.0)
    assert isinstance(unclear, RefusedRun) and "eight GH200" in unclear.reason
    assert isinstance(slow, RefusedRun) and "requests a second" in slow.reason
    assert LENGTHS in last.assumed


def test_requests_at_once_are_all_read_before_the_first_is_answered() -> None:
    """Of 64 with a server that takes .1 s longer over each; of those that come one by one each waits .1 s."""
    read_s = TABLE.fit("vllm")["server_s"] + 0.1
    slower = as_row(FittedRow("vllm", "*", "server_s", read_s, 0.0, 0), "")
    slow = CalibrationTable((0, row) for row in [*TABLE.rows(), slower])
    one_by_one = {"scenario": "open-loop ShareGPT 64 requests, 0.5 sessions/s"}
    for row, waits in (({}, 6.4), (one_by_one, 0.1)):
        runs = read(row)
        before, after = (
            {one.metric: one.predicted for one in predict(runs, HWDB, table)[0]} for table in (TABLE, slow)
        )
        assert after["ttft"] - before["ttft"] == pytest.approx(waits, rel=0.01)
        tokens = 64 * runs[0].osl
        longer = tokens / after["output_tok_s"] - tokens / before["output_tok_s"]
        assert longer == pytest.approx(waits, rel=0.02)
