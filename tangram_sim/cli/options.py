"""Options that several verbs share, so that they are spelled and explained once."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tangram_sim.errors import BadInputError

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.parallelizers.api import Constraints

ModelArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="MODEL", help="A shipped name (`tangram models list`), a config.json or a model.yaml.")
]
ClusterArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="CLUSTER", help="A shipped name or a cluster YAML file.")
]
GlobalBatch: TypeAlias = Annotated[int, typer.Option("--global-batch", help="Sequences per optimizer step.")]
Seq: TypeAlias = Annotated[int, typer.Option("--seq", help="Tokens per sequence.")]
Dtype: TypeAlias = Annotated[
    str, typer.Option("--dtype", help="auto, bf16, fp16, fp32, tf32, fp8, mxfp8 or nvfp4.")
]
Optimizer: TypeAlias = Annotated[str, typer.Option("--optimizer", help="adamw, lamb, sgd, lion, ...")]
Schedule: TypeAlias = Annotated[str, typer.Option("--schedule", help="1f1b, gpipe, zb-h1 or interleaved.")]
HwdbFolders: TypeAlias = Annotated[
    list[Path] | None, typer.Option("--hwdb", help="Folder with rows of your own; may be given several times, last wins.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Trace: TypeAlias = Annotated[
    Path | None, typer.Option("--trace", help="Write a timeline for chrome://tracing or Perfetto.")
]
Output: TypeAlias = Annotated[Path | None, typer.Option("-o", "--output", help="Write the plan to this file.")]

DEGREES = {"tp": "tp", "dp": "dp", "cp": "cp", "ep": "ep", "pp": "pp", "zero": "zero_stage", "zero_stage": "zero_stage"}


def load_hwdb(folders: Sequence[Path] | None) -> "Hwdb":
    """The shipped hardware database under the user's folders."""
    from tangram_sim.hwdb import Hwdb

    return Hwdb.load(tuple(folders or ()))


def names(text: str | None) -> tuple[str, ...]:
    """A comma-separated list of names."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def constraints(fix: Sequence[str], microbatch_per_rank: int, recompute: str | None, sequence_parallel: bool | None) -> "Constraints":
    """What --fix, --microbatch-per-rank and --recompute say. Raises BadInputError for contradictions."""
    from tangram_sim.layouts import RECOMPUTE
    from tangram_sim.parallelizers.api import Constraints

    fixed: dict[str, int] = {}
    for item in (part for text in fix for part in names(text)):
        name, _, value = item.partition("=")
        if name not in DEGREES or not value.isdigit():
            raise BadInputError(f"--fix {item}: give NAME=NUMBER with a name out of {', '.join(DEGREES)}")
        key, number = DEGREES[name], int(value)
        if (key == "zero_stage" and number > 3) or (key != "zero_stage" and number < 1):
            raise BadInputError(f"--fix {item}: {'zero is 0 to 3' if key == 'zero_stage' else 'a degree is 1 or more'}")
        if fixed.get(key, number) != number:
            raise BadInputError(f"--fix gives {name} two values, {fixed[key]} and {number}; keep one")
        fixed[key] = number
    kinds = names(recompute) or RECOMPUTE
    for kind in kinds:
        if kind not in RECOMPUTE:
            raise BadInputError(f"--recompute {kind}: known are {', '.join(RECOMPUTE)}")
    if microbatch_per_rank < 0:
        raise BadInputError(f"--microbatch-per-rank {microbatch_per_rank}: give 1 or more")
    return Constraints(tuple(sorted(fixed.items())), tuple(kinds), microbatch_per_rank, sequence_parallel)
