"""Measured steps out of training logs as frameworks print them, and out of charts exported from W&B.

What is looked for, and which source prints it:

- Megatron-LM, `training_log` of `megatron/training/training.py`: `iteration N/M | ... | elapsed time per
  iteration (ms): 34512.3 | ... | global batch size: 128 |`, each the mean since the line before
- NeMo, `train_step_timing in s` of its progress printer (`Training epoch 0, iteration 1/249 | ... |
  global_batch_size: 8 | global_step: 1 | ... | train_step_timing in s: 2.505`) and of the progress bar of
  NeMo 1 (`train_step_timing in s=3.130`)
- torchtitan, `MetricsProcessor.log` of `torchtitan/components/metrics.py`: `step: 10  loss: ...  tps: 7,291
  tflops: ...`; tps are tokens a second and device (`wps` in the releases of 2024)
- DeepSpeed, `PipelineEngine.train_batch` of `deepspeed/runtime/pipe/engine.py` (`steps: 200 loss: 5.5508
  iter time (s): 0.936 samples/sec: 136.706`) and `ThroughputTimer.stop` of `deepspeed/utils/timer.py`
  (`epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=25.0, CurrSamplesPerSec=25.7, ...`)
- W&B: a chart's CSV has a column `RUN - METRIC` per run beside those that end in `__MIN` and `__MAX`, a
  table's the metric's name alone; metrics are those that the same sources log
"""

import csv
import io
import math
import re
import statistics
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tangram_sim.datafiles import read_text
from tangram_sim.errors import BadInputError

WARM_UP = 0.1  # of the steps logged, at least one where there are more: compiling, filling caches
_NUMBER = r"([0-9][0-9,]*(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class LoggedQuantity(Enum):
    """What a line of a log says of its step."""

    SECONDS = "seconds"
    MILLISECONDS = "milliseconds"
    SAMPLES_PER_S = "samples a second"
    TOKENS_PER_S_PER_GPU = "tokens a second and GPU"


@dataclass(frozen=True, slots=True)
class LogFormat:
    """How one framework writes the speed of a step into its log, and in which unit."""

    framework: str
    quantity: LoggedQuantity
    line: re.Pattern[str]  # group 1: the figure
    batch: re.Pattern[str] | None = None  # group 1: sequences of one step


@dataclass(frozen=True, slots=True)
class LoggedSteps:
    """The steps of one run, in order."""

    framework: str
    quantity: LoggedQuantity
    figures: tuple[float, ...]  # of the last global batch where a log states it
    global_batch: int  # 0: not stated

    @property
    def used(self) -> tuple[float, ...]:
        """The figures after the warm-up."""
        skipped = max(1, math.floor(WARM_UP * len(self.figures))) if len(self.figures) > 1 else 0
        return self.figures[skipped:]

    def step_s(self, global_batch: int, seq_len: int, gpus: int) -> float:
        """Median seconds of a step of so many sequences and tokens on so many GPUs.

        Raises BadInputError where the log states another global batch.
        """
        if self.global_batch and self.global_batch != global_batch:
            raise BadInputError(
                f"the log is of a global batch of {self.global_batch}, the plan of {global_batch}: "
                "give the plan of that run"
            )
        figure = statistics.median(self.used)
        if self.quantity is LoggedQuantity.MILLISECONDS:
            return figure / 1e3
        if self.quantity is LoggedQuantity.SAMPLES_PER_S:
            return global_batch / figure
        if self.quantity is LoggedQuantity.TOKENS_PER_S_PER_GPU:
            return global_batch * seq_len / (figure * gpus)
        return figure


# The first that is found is taken: Megatron-DeepSpeed prints the lines of both, the first says more.
FORMATS = (
    LogFormat(
        "Megatron-LM",
        LoggedQuantity.MILLISECONDS,
        re.compile(r"iteration +[0-9]+/.*elapsed time per iteration \(ms\): *" + _NUMBER),
        re.compile(r"global batch size: *([0-9]{1,9})\b"),
    ),
    LogFormat(
        "NeMo",
        LoggedQuantity.SECONDS,
        re.compile(r"train_step_timing in s(?:=|: *)" + _NUMBER),
        re.compile(r"global_batch_size: *([0-9]{1,9})\b"),
    ),
    LogFormat(
        "torchtitan",
        LoggedQuantity.TOKENS_PER_S_PER_GPU,
        re.compile(r"(?<!validate )step: *[0-9]+ .*loss: .*\b(?:tps|wps): *" + _NUMBER),
    ),
    LogFormat(
        "DeepSpeed",
        LoggedQuantity.SECONDS,
        re.compile(r"\bsteps?: *[0-9]+ .*iter time \(s\): *" + _NUMBER),
    ),
    LogFormat("DeepSpeed", LoggedQuantity.SAMPLES_PER_S, re.compile(r"\bCurrSamplesPerSec=" + _NUMBER)),
)

# Metrics of W&B: (name, framework, what it is); seconds before rates.
METRICS = (
    ("iteration-time", "Megatron-LM", LoggedQuantity.SECONDS),
    ("train_step_timing in s", "NeMo", LoggedQuantity.SECONDS),
    ("time_metrics/end_to_end(s)", "torchtitan", LoggedQuantity.SECONDS),
    ("throughput(tps)", "torchtitan", LoggedQuantity.TOKENS_PER_S_PER_GPU),
)


def read_log(path: Path) -> LoggedSteps:
    """The steps in a log or an exported chart.

    Raises BadInputError where neither is found, naming what was looked for, and for a chart of several runs.
    """
    text = read_text(path)
    found = find_steps(text, str(path))
    if found is None:
        metrics = ", ".join(name for name, _, _ in METRICS)
        frameworks = ", ".join(dict.fromkeys(log_format.framework for log_format in FORMATS))
        raise BadInputError(
            f"{path}: no step times found, neither lines that {frameworks} print nor a CSV of W&B with a "
            f"column of {metrics}; give the step yourself, plan.json `step_s=34.5`"
        )
    return found


def find_steps(text: str, where: str) -> LoggedSteps | None:
    """The steps in the text of a log or an exported chart; None where there are none."""
    for kind in FORMATS:
        found = _lines(_COLOUR.sub("", text), kind)
        if found is not None:
            return found
    return _chart(text, where)


def _lines(text: str, kind: LogFormat) -> LoggedSteps | None:
    steps = []
    for line in text.splitlines():
        match = kind.line.search(line)
        if match is None:
            continue
        batch = kind.batch.search(line) if kind.batch else None
        figure = _figure(match[1])
        if figure:
            steps.append((figure, int(batch[1]) if batch else 0))
    if not steps:
        return None
    last = steps[-1][1]  # a batch that grows while a run begins is of another step
    return LoggedSteps(
        kind.framework, kind.quantity, tuple(figure for figure, batch in steps if batch == last), last
    )


def _chart(text: str, where: str) -> LoggedSteps | None:
    try:
        rows = list(csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline="")))
    except csv.Error:
        return None
    header = [cell.strip() for cell in rows[0]] if rows else []
    for metric, framework, quantity in METRICS:
        columns = [n for n, cell in enumerate(header) if cell == metric or cell.endswith(f" - {metric}")]
        if len(columns) > 1:
            runs = ", ".join(header[n].removesuffix(f" - {metric}") for n in columns)
            raise BadInputError(f"{where}: {metric} of {len(columns)} runs ({runs}); export one run")
        if columns:
            cells = [row[columns[0]] for row in rows[1:] if len(row) > columns[0]]
            figures = tuple(figure for figure in map(_figure, cells) if figure)
            if figures:
                return LoggedSteps(framework, quantity, figures, 0)
    return None


def _figure(text: str) -> float:
    """The number, 0 for what is none above zero."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and value > 0 else 0.0
