"""Options that say what requests come in, shared by the verbs that need them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tangram_sim.errors import BadInputError, unknown_name

if TYPE_CHECKING:
    from tangram_sim.serving.outcome import Slo
    from tangram_sim.serving.rates_file import RateWindow
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
Rates: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--rates",
        help="Rates over time in place of --rate: CSV of start_s, rate_rps[, cv] (ServeGen's tables too).",
    ),
]
Isl: TypeAlias = Annotated[float, typer.Option("--isl", help="Prompt tokens of a request.")]
Osl: TypeAlias = Annotated[float, typer.Option("--osl", help="Output tokens of a request.")]
Mix: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--mix",
        help="Lengths by share in place of --isl and --osl, like 2455:510:0.3,496:18:0.7; "
        "for a fleet of several models with names: NAME=in:out:share.",
    ),
]
LengthCv: TypeAlias = Annotated[
    float, typer.Option("--length-cv", help="Coefficient of variation of lengths (lognormal).")
]
Requests: TypeAlias = Annotated[
    int, typer.Option("--requests", min=1, max=100_000_000, help="How many requests are made.")
]
Burstiness: TypeAlias = Annotated[
    float,
    typer.Option("--burstiness", help="Coefficient of variation of gaps: 0 even, 1 Poisson, above: bursts."),
]
Seed: TypeAlias = Annotated[int, typer.Option("--seed", min=0, help="Of what is drawn.")]
SloOption: TypeAlias = Annotated[
    str | None, typer.Option("--slo", help="What a good request keeps, seconds, like ttft=1,tpot=0.05.")
]


@dataclass(frozen=True, slots=True)
class TraceRequests:
    """Options to read requests from a trace, with its own arrival times or at a given rate."""

    where: Where = None
    rate: Rate = None
    burstiness: Burstiness = 1.0
    seed: Seed = 0

    def rates(self, file: Path) -> "list[RateWindow]":
        """The windows in a file of rates. Raises BadInputError where a rate is given beside it."""
        from tangram_sim.serving.rates_file import read_rates

        if self.rate is not None or self.burstiness != 1.0:
            raise BadInputError(f"{file} says when requests come; leave --rate and --burstiness out")
        return read_rates(file, dict(_pair(text) for text in self.where or ()))

    def described(self, trace: Path) -> "Workload":
        """The requests in the file, evenly spaced where it has lengths only. Raises BadInputError."""
        from tangram_sim.serving.trace_file import count_rows, has_arrivals, read_trace

        if self.rate is not None or has_arrivals(trace):
            return self.read(trace)
        import numpy as np

        chosen = dict(_pair(text) for text in self.where or ())
        evenly = np.arange(count_rows(trace, chosen), dtype=np.float64)
        work = read_trace(trace, arrivals_from=evenly, where=chosen)
        note = "lengths only: shown as if one request came each second; `rate=` R says how they come"
        return replace(work, notes=(*work.notes, note))

    def read(self, trace: Path) -> "Workload":
        """The requests in the file `trace`. Raises BadInputError."""
        from tangram_sim.serving.synthetic import arrivals
        from tangram_sim.serving.trace_file import count_rows, read_trace

        chosen = dict(_pair(text) for text in self.where or ())
        times = None
        if self.rate is not None:
            times = arrivals(count_rows(trace, chosen), self.rate, self.seed, self.burstiness)
        return read_trace(trace, arrivals_from=times, where=chosen)


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Options on the incoming requests: read from a trace, or generated from lengths and a rate."""

    trace: Trace = None
    where: Where = None
    rate: Rate = None
    rates: Rates = None
    isl: Isl = 1024
    osl: Osl = 256
    mix: Mix = None
    length_cv: LengthCv = 0.0
    requests: Requests = 1000
    burstiness: Burstiness = 1.0
    seed: Seed = 0

    def made(self, mix_option: str = "--mix") -> "Workload":
        """The requests, read or generated as the options say. Raises BadInputError."""
        from tangram_sim.serving.synthetic import LengthMix, synthetic

        if self.rates is not None:
            return self._at_rates(self.rates, mix_option)
        if self.trace is not None:
            return TraceRequests(self.where, self.rate, self.burstiness, self.seed).read(self.trace)
        if self.rate is None:
            raise BadInputError(
                "no requests: give --trace FILE.csv, or --rate R or --rates FILE.csv with --isl and --osl"
            )
        if not all(map(isfinite, (self.rate, self.isl, self.osl, self.length_cv, self.burstiness))):
            raise BadInputError("--rate, --isl, --osl, --length-cv, --burstiness: give finite numbers")
        parts = [LengthMix(self.isl, self.osl, 1.0, self.length_cv)]
        if self.mix is not None:
            parts = parse_mix(self.mix, self.length_cv, mix_option)
        return synthetic(self.requests, self.rate, parts, self.seed, self.burstiness)

    def _at_rates(self, rates: Path, mix_option: str) -> "Workload":
        """Generated requests: lengths as the options say, arrival rates by time window from a file."""
        from tangram_sim.serving.rates_file import arrivals_at, read_rates

        if self.trace is not None or self.rate is not None or self.burstiness != 1.0:
            raise BadInputError("--rates say when requests come; leave --trace, --rate and --burstiness out")
        windows = read_rates(rates, dict(_pair(text) for text in self.where or ()))
        times = arrivals_at(windows, self.requests, self.seed)
        made = replace(self, rates=None, where=None, rate=1.0, requests=len(times)).made(mix_option)
        return replace(made, arrival_s=times)

    def without_arrivals(self, option: str) -> "Workload":
        """Requests whose sending times simulated clients decide. Raises BadInputError if a rate is given."""
        if self.rate is not None or self.rates is not None or self.burstiness != 1.0:
            raise BadInputError(
                f"{option} say when requests come; leave --rate, --rates and --burstiness out"
            )
        return replace(self, rate=None if self.trace is not None else 1.0).made()


def parse_mix(text: str, length_cv: float, option: str) -> "list[LengthMix]":
    """`[model=]in:out[:share],...` as parts of a mix; all parts name a model, or none."""
    from tangram_sim.serving.synthetic import LengthMix

    parts = []
    for part in text.split(","):
        model, _, lengths = part.rpartition("=")
        try:
            numbers = [float(word) for word in lengths.split(":")]
        except ValueError:
            numbers = []
        if len(numbers) not in (2, 3) or not all(map(isfinite, numbers)):
            raise BadInputError(
                f"{option} {text}: {part!r} given; a part is in:out or in:out:share, like 496:18:0.7, "
                "or MODEL=in:out:share"
            )
        share = numbers[2] if len(numbers) == 3 else 1.0
        parts.append(LengthMix(numbers[0], numbers[1], share, length_cv, model.strip()))
    if len({bool(part.model) for part in parts}) > 1:
        raise BadInputError(f"{option} {text}: some parts name a model and others do not; name it in all")
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
