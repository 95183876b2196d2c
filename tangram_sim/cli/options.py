"""Options shared by several verbs, defined once so that names and help texts agree."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from tangram_sim.errors import BadInputError, unknown_name

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.parallelizers.api import Constraints
    from tangram_sim.training.job import Job

ModelArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A shipped name (`tangram models list`), a config.json, a model.yaml or a plan."
    ),
]
ClusterArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="CLUSTER", help="A shipped name, nodes like H100x8:1+L40Sx4:2, a YAML file or a plan."
    ),
]


_DECIMAL = re.compile(r"-?[0-9]+([.][0-9]+)?")
_WORDS = ("inf", "infinity", "nan")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_LONG_NAMES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
_SCHEDULES = ("1f1b", "gpipe", "zb-h1", "interleaved", "zb-v", "dualpipe-v", "auto")


def seconds(given: str | float) -> float:
    """--time-limit as people write it: 90, 90s, 1.5m or 1h. Raises BadInputError."""
    text = str(given).strip().lower()
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ") if text not in _WORDS else text
    factor = _SECONDS.get(text[len(number) :].strip())
    try:
        if factor is not None:
            return float(number) * factor
    except ValueError:
        pass
    raise BadInputError(f"--time-limit {given}: give seconds, e.g. 90, or 90s, 2m, 1h")


def time_limit(words: str) -> Any:
    """The option --time-limit, which every verb says in `words` of its own."""
    return typer.Option("--time-limit", parser=seconds, metavar="SECONDS", help=words)


def schedule(given: str) -> str:
    """--schedule with the names of our own schedules in any case."""
    return given.lower() if given.lower() in _SCHEDULES else given


def _dtype(given: str) -> str:
    """--dtype in any case, and by the names that PyTorch has."""
    return _LONG_NAMES.get(given.lower(), given.lower())


def _whole(given: str | int) -> int:
    """A whole number as people write it: 8192, 8,192 or 8k, which is 8,192, so 1.5k is 1,536.

    Raises typer.BadParameter.
    """
    text = str(given).replace(",", "").replace("_", "").strip()
    try:
        if text[-1:] not in ("k", "K"):
            return int(text)
        thousands = text[:-1].strip()
        number = Fraction(thousands) * 1024 if _DECIMAL.fullmatch(thousands) else Fraction(1, 2)
        if number.denominator != 1:
            raise ValueError(text)
        return int(number)
    except ValueError:
        raise typer.BadParameter(f"{given!r} is not a valid integer; give e.g. 8192 or 8k") from None


GlobalBatch: TypeAlias = Annotated[
    int,
    typer.Option(
        "--global-batch", parser=_whole, metavar="INTEGER", help="Sequences per optimizer step; 4k is 4,096."
    ),
]
Seq: TypeAlias = Annotated[
    int,
    typer.Option("--seq", parser=_whole, metavar="INTEGER", help="Tokens per sequence; 8k is 8,192."),
]
Dtype: TypeAlias = Annotated[
    str,
    typer.Option(
        "--dtype", parser=_dtype, metavar="TEXT", help="auto, bf16, fp16, fp32, tf32, fp8, mxfp8 or nvfp4."
    ),
]
Optimizer: TypeAlias = Annotated[
    str, typer.Option("--optimizer", help="adamw, adam, adamw-8bit, lamb, sgd, momentum, lion or adafactor.")
]
Stack: TypeAlias = Annotated[
    str,
    typer.Option(
        "--stack", help="Software stack whose efficiency rows apply: generic, megatron, nemo, fsdp, ..."
    ),
]
Schedule: TypeAlias = Annotated[
    str,
    typer.Option(
        "--schedule",
        parser=schedule,
        metavar="TEXT",
        help="1f1b, gpipe, zb-h1, interleaved, zb-v, dualpipe-v, or an added one.",
    ),
]


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Options that describe a training job: the fields of `training.job.Job`."""

    global_batch: GlobalBatch = 128
    seq: Seq = 2048
    dtype: Dtype = "auto"
    optimizer: Optimizer = "adamw"
    schedule: Schedule = "1f1b"

    @property
    def job(self) -> "Job":
        """The options as a `training.job.Job`."""
        from tangram_sim.training.job import Job

        return Job(self.global_batch, self.seq, self.dtype, self.optimizer, self.schedule)

    @property
    def words(self) -> str:
        """The job in words, defaults too: `128 sequences of 2,048 tokens, adamw, 1f1b`."""
        dtype = "" if self.dtype == "auto" else f", {self.dtype}"
        batch = f"{self.global_batch:,} sequence{'' if self.global_batch == 1 else 's'}"
        return f"{batch} of {self.seq:,} tokens{dtype}, {self.optimizer}, {self.schedule}"


HwdbFolders: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--hwdb", help="Folder with rows of your own; may be given several times, last wins."),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Trace: TypeAlias = Annotated[
    Path | None, typer.Option("--trace", help="Write a timeline for chrome://tracing or Perfetto.")
]
MemoryFile: TypeAlias = Annotated[
    Path | None, typer.Option("--memory", help="Write bytes by stage over the step to this CSV file.")
]
Slow: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--slow",
        help="What runs slow: a file, or WHERE=FACTOR pairs, e.g. n3=1.5 (node 3, 1.5 times slower); "
        "pairs may be given several times.",
    ),
]
Output: TypeAlias = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Write the plan to this file, or report.html to look at."),
]

MemoryMargin: TypeAlias = Annotated[
    str,
    typer.Option(
        "--memory-margin",
        help="Share of every GPU's memory to leave free, e.g. 0.1. auto: so much that the upper end of the "
        "peak's interval fits.",
    ),
]

DEGREES = {
    "tp": "tp",
    "dp": "dp",
    "cp": "cp",
    "ep": "ep",
    "pp": "pp",
    "zero": "zero_stage",
    "zero_stage": "zero_stage",
}
MOST_SHOWN = 1000  # plans under --top
_DIGITS = 9  # of a degree; more would be no number of GPUs


def load_hwdb(folders: Sequence[Path] | None) -> "Hwdb":
    """The shipped hardware tables, overridden by rows in the user's folders."""
    from tangram_sim.hwdb import Hwdb

    return Hwdb.load(tuple(folders or ()))


def require_fraction(option: str, value: float) -> None:
    """Raise BadInputError unless `value` is a finite number, zero or more."""
    if not math.isfinite(value) or value < 0:
        raise BadInputError(f"{option} {value:g}: give a finite number, zero or more, e.g. 0.1")


Effort = Annotated[
    str,
    typer.Option(
        "--effort",
        help="How hard to look: quick, normal or exhaustive. Work is counted: the same plan anywhere.",
    ),
]


def effort(given: str) -> str:
    """`given` unchanged if it names a search effort. Raises UnknownNameError otherwise."""
    from tangram_sim.planners.budget import budget

    budget(given)
    return given


def given_limit_s(given: float | None) -> float | None:
    """--time-limit in seconds, None where it was not given. Raises BadInputError unless 0 or more."""
    if given is not None and not given >= 0:
        raise BadInputError(f"--time-limit {given:g}: give seconds, 0 or more")
    return given


def time_limit_s(given: float | None) -> float:
    """--time-limit in seconds, inf where it was not given. Raises BadInputError unless 0 or more."""
    limit_s = given_limit_s(given)
    return math.inf if limit_s is None else limit_s


def memory_margin(given: str) -> float | None:
    """--memory-margin as a fraction of GPU memory, None for `auto`. Raises BadInputError otherwise."""
    if given == "auto":
        return None
    try:
        percent = given.strip().endswith("%")
        return float(given.strip().removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        raise BadInputError(
            f"--memory-margin {given}: give auto or a share of the memory, e.g. 0.1 or 10%"
        ) from None


def names(option: str, text: str | None) -> tuple[str, ...]:
    """A comma-separated list of names; () where the option was not given.

    Raises BadInputError for an option that was given without any name.
    """
    found = tuple(part.strip() for part in (text or "").split(",") if part.strip())
    if text is not None and not found:
        raise BadInputError(f"{option} {text!r}: give names separated by commas, or leave the option out")
    return found


def constraints(
    fix: Sequence[str],
    microbatch_per_rank: int | None,
    recompute: str | None,
    sequence_parallel: bool | None = None,
) -> "Constraints":
    """The limits on layouts set by --fix, --microbatch-per-rank, --recompute and sequence parallelism.

    Raises BadInputError for options that contradict each other or are malformed.
    """
    from tangram_sim.layouts import RECOMPUTE
    from tangram_sim.parallelizers.api import Constraints

    fixed: dict[str, int] = {}
    for item in (part for text in fix for part in names("--fix", text)):
        name, _, value = (part.strip() for part in item.partition("="))
        if name not in DEGREES or not (value.isascii() and value.isdigit()):
            raise BadInputError(
                f"--fix {item}: give NAME=NUMBER with a name out of {', '.join(DEGREES)}, e.g. --fix tp=4"
            )
        key, number = DEGREES[name], int(value[:_DIGITS])
        if key == "zero_stage" and number > 3:
            raise BadInputError(f"--fix {item}: ZeRO stages are 0 to 3")
        if key != "zero_stage" and number < 1:
            raise BadInputError(f"--fix {item}: a degree is 1 or more")
        if fixed.get(key, number) != number:
            raise BadInputError(f"--fix gives {name} two values, {fixed[key]} and {number}; keep one")
        fixed[key] = number
    kinds = names("--recompute", recompute) or RECOMPUTE
    for kind in kinds:
        if kind not in RECOMPUTE:
            raise unknown_name("recompute kind", kind, RECOMPUTE)
    if microbatch_per_rank is not None and microbatch_per_rank < 1:
        raise BadInputError(
            f"--microbatch-per-rank {microbatch_per_rank}: give 1 or more, or leave the option out"
        )
    return Constraints(
        tuple(sorted(fixed.items())),
        tuple(kind for kind in RECOMPUTE if kind in kinds),
        microbatch_per_rank or 0,
        sequence_parallel,
    )


def counts_by_kind(option: str, given: list[str]) -> dict[str, int]:
    """Counts by GPU or node kind from items `NUMBER` (under the kind "") or `KIND=NUMBER`.

    Raises BadInputError, naming `option`, for anything else.
    """
    found: dict[str, int] = {}
    for item in given:
        kind, _, number = item.rpartition("=")
        if not (number.isascii() and number.isdigit() and 0 < int(number[:9]) <= 100_000):
            raise BadInputError(
                f"{option} {item}: give a number from 1 to 100000, or KIND=NUMBER, e.g. T4=16"
            )
        if kind in found:
            raise BadInputError(f"{option} gives {kind or 'a number without kind'} twice; keep one")
        found[kind] = int(number)
    return found
