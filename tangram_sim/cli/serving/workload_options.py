"""Options that say what requests come in, shared by the verbs that need them."""

from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tangram_sim.errors import BadInputError, unknown_name

if TYPE_CHECKING:
    from tangram_sim.serving.outcome import Slo
    from tangram_sim.serving.synthetic import LengthMix
    from tangram_sim.serving.workload import Workload

Trace: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--trace", help="CSV of requests: arrival_s, input_tokens, output_tokens[, prefix_id, ...]."
    ),
]
Where: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--where", help="Of the trace, rows with this value, like tokenizer=llama; may be repeated."
    ),
]
Rate: TypeAlias = Annotated[float | None, typer.Option("--rate", help="Requests a second, Poisson.")]
Isl: TypeAlias = Annotated[float, typer.Option("--isl", help="Prompt tokens of a request.")]
Osl: TypeAlias = Annotated[float, typer.Option("--osl", help="Output tokens of a request.")]
Mix: TypeAlias = Annotated[
    str | None,
    typer.Option("--mix", help="Lengths by share in place of --isl and --osl, like 2455:510:0.3,496:18:0.7."),
]
LengthCv: TypeAlias = Annotated[
    float, typer.Option("--length-cv", help="Coefficient of variation of lengths (lognormal).")
]
Requests: TypeAlias = Annotated[int, typer.Option("--requests", help="How many requests are made.")]
Burstiness: TypeAlias = Annotated[
    float,
    typer.Option("--burstiness", help="Coefficient of variation of gaps: 0 even, 1 Poisson, above: bursts."),
]
Seed: TypeAlias = Annotated[int, typer.Option("--seed", min=0, help="Of what is drawn.")]
SloOption: TypeAlias = Annotated[
    str | None, typer.Option("--slo", help="What a good request keeps, seconds, like ttft=1,tpot=0.05.")
]


def workload_of(
    trace: Path | None,
    where: list[str] | None,
    rate: float | None,
    isl: float,
    osl: float,
    mix: str | None,
    length_cv: float,
    requests: int,
    burstiness: float,
    seed: int,
) -> "Workload":
    """The requests that the options speak of. Raises BadInputError."""
    from tangram_sim.serving.synthetic import LengthMix, arrivals, synthetic
    from tangram_sim.serving.trace_file import count_rows, read_trace

    if trace is not None:
        chosen = dict(_pair(text) for text in where or ())
        times = None if rate is None else arrivals(count_rows(trace, chosen), rate, seed, burstiness)
        return read_trace(trace, arrivals_from=times, where=chosen)
    if rate is None:
        raise BadInputError("no requests: give --trace FILE.csv, or --rate R with --isl and --osl")
    parts = [LengthMix(isl, osl, 1.0, length_cv)] if mix is None else parse_mix(mix, length_cv)
    return synthetic(requests, rate, parts, seed, burstiness)


def parse_mix(text: str, length_cv: float) -> "list[LengthMix]":
    """`in:out[:share],...` as parts of a mix."""
    from tangram_sim.serving.synthetic import LengthMix

    parts = []
    for part in text.split(","):
        try:
            numbers = [float(word) for word in part.split(":")]
        except ValueError:
            numbers = []
        if len(numbers) not in (2, 3):
            raise BadInputError(
                f"--mix {text}: {part!r} given; a part is in:out or in:out:share, like 496:18:0.7"
            )
        share = numbers[2] if len(numbers) == 3 else 1.0
        parts.append(LengthMix(numbers[0], numbers[1], share, length_cv))
    return parts


def slo_of(text: str | None) -> "Slo":
    """`ttft=1,tpot=0.05` as an objective; nothing: no limit."""
    from tangram_sim.serving.outcome import Slo

    limits: Mapping[str, float] = dict(_limit(part) for part in text.split(",")) if text else {}
    return Slo(limits.get("ttft", inf), limits.get("tpot", inf))


def _limit(part: str) -> tuple[str, float]:
    name, value = _pair(part, "--slo")
    if name not in ("ttft", "tpot"):
        raise unknown_name(
            "objective in --slo", name, ("ttft", "tpot"), "Give it like --slo ttft=1,tpot=0.05."
        )
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < inf:
        raise BadInputError(f"--slo {part}: {value!r} given; seconds above 0 are wanted, like {name}=1")
    return name, seconds


def _pair(text: str, option: str = "--where") -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise BadInputError(f"{option} {text}: give it like NAME=VALUE")
    return name.strip(), value.strip()
