"""Steps read from training logs as frameworks print them and from exported charts, and what is refused."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tangram_validate.calibration.logs import find_steps, read_log

from tangram_sim.errors import BadInputError
from tangram_sim.studies.planfile import read_plan
from tests.commands import tangram
from tests.unit.validation.test_own_plans import made_plan

MEGATRON = (
    " [2026-01-02 03:04:05] iteration {n:8d}/     500 | consumed samples: {n:12d} | elapsed time per "
    "iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): 401.5 | learning rate: 3.0E-05 | "
    "global batch size: {batch:5d} | lm loss: 1.093E+01 | grad norm: 5.2 |"
)
NEMO = (
    "Training epoch 0, iteration {n}/249 | lr: 1.9e-06 | global_batch_size: {batch} | global_step: {n} | "
    "reduced_train_loss: 1.3 | train_step_timing in s: {s:.3f} | consumed_samples: 16"
)
NEMO_BAR = "\rEpoch 0: :  4%|| {n}/100 [v_num=0, global_step={n}.00, train_step_timing in s={s:.3f}]"
TITAN = (
    "[rank0]:[titan] 2026-01-02 03:04:05,678 - root - INFO - \x1b[31mstep: {n:2}  \x1b[32mloss:  8.1234  "
    "\x1b[33mgrad_norm:  1.2  \x1b[36mmemory: 40.01GiB(50.5%)  \x1b[34mtps: {tps:,}  \x1b[36mtflops: 390.12  "
    "\x1b[35mmfu: 39.45%\x1b[39m"
)
PIPELINE = "steps: {n} loss: 5.5508 lm loss: 5.5103 iter time (s): {s:.3f} samples/sec: 136.706"
ENGINE = (
    "[2026-01-02 03:04:05,714] [INFO] [timer.py:260:stop] epoch=0/micro_step={n}/global_step={n}, "
    "RunningAvgSamplesPerSec=25.02, CurrSamplesPerSec={rate}, MemAllocated=4.32GB, MaxMemAllocated=38.49GB"
)
# 128 sequences of 1,000 tokens on 8 GPUs in 4 s; the first step takes ten times as long.
BATCH, SEQ, GPUS, STEP_S = 128, 1000, 8, 4.0


def printed(line: str, times: int = 5) -> str:
    """A log with a slow first step."""
    steps = [10 * STEP_S, *[STEP_S] * (times - 1)]
    lines = [
        line.format(n=n, s=s, ms=1e3 * s, batch=BATCH, rate=BATCH / s, tps=round(BATCH * SEQ / s / GPUS))
        for n, s in enumerate(steps, 1)
    ]
    return "> building the model ...\n" + "\n".join(lines) + "\n[after training is done]\n"


@pytest.mark.parametrize(
    ("line", "framework"),
    [
        (MEGATRON, "Megatron-LM"),
        (MEGATRON.replace("{ms:.1f}", "{ms:.1f}/5000.0"), "Megatron-LM"),
        (NEMO, "NeMo"),
        (NEMO_BAR, "NeMo"),
        (TITAN, "torchtitan"),
        (TITAN.replace("tps", "wps").replace("{wps", "{tps"), "torchtitan"),
        (PIPELINE, "DeepSpeed"),
        (ENGINE, "DeepSpeed"),
        (f"{ENGINE}\n{MEGATRON}", "Megatron-LM"),
    ],
)
def test_a_log_as_it_is_printed(line: str, framework: str) -> None:
    found = find_steps(printed(line), "log")
    assert found is not None and found.framework == framework
    assert len(found.figures) == 5 and len(found.used) == 4
    assert found.step_s(BATCH, SEQ, GPUS) == pytest.approx(STEP_S)


@pytest.mark.parametrize(
    ("metric", "figure"),
    [
        ("iteration-time", STEP_S),
        ("train_step_timing in s", STEP_S),
        ("time_metrics/end_to_end(s)", STEP_S),
        ("throughput(tps)", BATCH * SEQ / STEP_S / GPUS),
    ],
)
def test_a_chart_exported_from_wandb(metric: str, figure: float) -> None:
    rows = "".join(f'"{n}","{figure}","{figure}","{figure}"\n' for n in range(5)) + '"9","","",""\n'
    column = f"calm-sea-7 - {metric}"
    chart = f'"Step","{column}","{column}__MIN","{column}__MAX"\n{rows}'
    for text in (chart, f"\ufeff{chart}", chart.replace("calm-sea-7 - ", "")):
        found = find_steps(text, "chart.csv")
        assert found is not None and len(found.figures) == 5
        assert found.step_s(BATCH, SEQ, GPUS) == pytest.approx(STEP_S)
    with pytest.raises(BadInputError, match="2 runs"):
        find_steps(f'"Step","a - {metric}","b - {metric}"\n1,2,3\n', "chart.csv")


def test_validation_steps_and_a_growing_batch_are_left_out() -> None:
    checks = printed(TITAN).replace("step:", "validate step:").replace("tps: ", "tps: 9")
    both = find_steps(printed(TITAN) + checks, "log")
    assert both is not None and len(both.figures) == 5
    ramp = "".join(MEGATRON.format(n=n, ms=100.0, batch=16) + "\n" for n in range(9))
    grown = find_steps(ramp + printed(MEGATRON), "log")
    assert grown is not None and grown.step_s(BATCH, SEQ, GPUS) == pytest.approx(STEP_S)
    with pytest.raises(BadInputError, match="global batch of 128, the plan of 64"):
        grown.step_s(64, SEQ, GPUS)


@pytest.mark.parametrize(
    "text", ["", "loss: 3.2\n", "Step,a - loss\n1,2\n", '"unclosed\n', PIPELINE.format(n=1, s=0), "{}"]
)
def test_where_nothing_is_found_it_says_what_was_looked_for(text: str, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(text)
    with pytest.raises(BadInputError, match=r"no step times.*Megatron-LM.*DeepSpeed.*iteration-time"):
        read_log(log)


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="0123456789.,eE+-:|=/ \n\r\x1bsteploiramn()[]", max_size=200), st.integers(0, 4))
def test_damaged_lines_are_read_or_left(damage: str, at: int) -> None:
    line = (MEGATRON, NEMO, TITAN, PIPELINE, ENGINE)[at]
    text = printed(line, 2)
    for place in (0, len(text) // 2, len(text)):
        found = find_steps(text[:place] + damage + text[place:], "log")
        assert found is None or all(0 < figure < float("inf") for figure in found.figures)


def test_a_log_and_its_plan(tmp_path: Path) -> None:
    plan, log = made_plan(tmp_path, "--pp", 3), tmp_path / "train.log"
    step_s = 1.3 * read_plan(plan).step_s
    lines = [ENGINE.format(n=n, rate=8 / (step_s * (5 if n == 1 else 1))) for n in range(1, 12)]
    log.write_text("\n".join(lines))
    neutral = ("--hwdb", tmp_path / "neutral")
    found = tangram("calibrate", "run", log, "--plan", plan, *neutral, "-o", tmp_path / "mine", "--json").json
    assert found["rows"][0]["measured_s"] == pytest.approx(step_s)
    direct = tangram("calibrate", "run", plan, "--step-s", step_s, *neutral, "--json").json
    assert direct["rows"][0]["after"] == pytest.approx(found["rows"][0]["after"])
    assert any("10 of 11" in item["note"] and "DeepSpeed" in item["note"] for item in found["notes"])
    assert (tmp_path / "mine" / "efficiency" / "calibrated.csv").exists()
    alone = tangram("calibrate", "run", log)
    assert alone.code == 2 and "--plan plan.json" in alone.err and "DeepSpeed" in alone.err
    log.write_text(printed(MEGATRON))
    other = tangram("calibrate", "run", log, "--plan", plan)
    assert other.code == 2 and "global batch of 128" in other.err and not other.out
