"""Fields that say which requests a service gets: read from a trace, or made from lengths and a rate."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.fields import described, option
from tangram_sim.written import whole

if TYPE_CHECKING:
    from tangram_sim.serving.outcome import Slo
    from tangram_sim.serving.rates_file import RateWindow
    from tangram_sim.serving.synthetic import LengthMix
    from tangram_sim.serving.workload import Workload

MOST_REQUESTS = 100_000_000
REQUESTS = "Requests"
_ABOUT: dict[str, Any] = {"group": REQUESTS}
_BASIC: dict[str, Any] = {**_ABOUT, "basic": True}


def rate_option() -> Any:
    """The option for the rate of requests."""
    return option(
        None,
        "Requests a second, Poisson.",
        label="Requests a second",
        unit="requests/s",
        above=0,
        example="5",
        **_BASIC,
    )


def requests_option() -> Any:
    """The option for the number of requests."""
    return option(
        1000,
        "How many requests are made.",
        label="Requests",
        unit="requests",
        least=1,
        most=MOST_REQUESTS,
        reads=whole,
        **_ABOUT,
    )


def where_option() -> Any:
    """The option that selects rows of a trace."""
    return option(
        (),
        "Of the trace, rows with this value, like tokenizer=llama; may be repeated.",
        on_page=False,
        **_ABOUT,
    )


def burstiness_option() -> Any:
    """The option for the burstiness of arrivals."""
    return option(
        1.0,
        "Coefficient of variation of gaps: 0 even, 1 Poisson, above: bursts.",
        label="Burstiness",
        least=0,
        example="1",
        **_ABOUT,
    )


def seed_option() -> Any:
    """The option for the random seed."""
    return option(0, "Seed of what is drawn.", label="Seed", least=0, **_ABOUT)


def slo_option() -> Any:
    """The option for the latency objective of a good request."""
    return option(
        None,
        "What a good request keeps, seconds, like ttft=1,tpot=0.05.",
        label="A good request keeps",
        **_BASIC,
    )


@dataclass(frozen=True, slots=True)
class ChosenRequests:
    """Rows of a trace to use, requests per second, and the random seed."""

    where: tuple[str, ...] = where_option()
    rate: float | None = rate_option()
    seed: int = seed_option()


@dataclass(frozen=True, slots=True)
class CountedRequests(ChosenRequests):
    """A given number of requests."""

    requests: int = requests_option()


@described
@dataclass(frozen=True, slots=True)
class TraceRequests(ChosenRequests):
    """Requests from a trace, with its arrival times or at a given rate."""

    burstiness: float = burstiness_option()

    def rates(self, file: Path) -> "list[RateWindow]":
        """The windows in a file of rates. Raises BadInputError if a rate is given as well."""
        from tangram_sim.serving.rates_file import read_rates

        if self.rate is not None or self.burstiness != 1.0:
            raise BadInputError(f"{file} says when requests come; leave `rate=` and `burstiness=` out")
        return read_rates(file, self._chosen)

    def described(self, trace: Path) -> "Workload":
        """The requests in the file, evenly spaced if it has lengths only. Raises BadInputError."""
        from tangram_sim.serving.trace_file import count_rows, has_arrivals, read_trace

        if self.rate is not None or has_arrivals(trace):
            return self.read(trace)
        import numpy as np

        evenly = np.arange(count_rows(trace, self._chosen), dtype=np.float64)
        work = read_trace(trace, arrivals_from=evenly, where=self._chosen)
        note = "lengths only: shown as if one request came each second; `rate=` R says how they come"
        return replace(work, notes=(*work.notes, note))

    def read(self, trace: Path) -> "Workload":
        """The requests in the file `trace`. Raises BadInputError."""
        from tangram_sim.serving.synthetic import arrivals
        from tangram_sim.serving.trace_file import count_rows, read_trace

        times = None
        if self.rate is not None:
            times = arrivals(count_rows(trace, self._chosen), self.rate, self.seed, self.burstiness)
        return read_trace(trace, arrivals_from=times, where=self._chosen)

    @property
    def _chosen(self) -> dict[str, str]:
        return chosen_rows(self.where)


@described
@dataclass(frozen=True, slots=True)
class MadeRequests(CountedRequests):
    """Requests read from a trace, or made from lengths and a rate."""

    trace: Path | None = option(
        None,
        "CSV of requests: arrival_s, input_tokens, output_tokens[, prefix_id, ...].",
        label="Trace of requests",
        **_BASIC,
    )
    rates: Path | None = option(
        None,
        "Rates over time in place of `rate=`: CSV of start_s, rate_rps[, cv] (ServeGen's tables too).",
        on_page=False,
        **_ABOUT,
    )
    isl: float = option(
        1024.0, "Prompt tokens of a request.", label="Prompt tokens", unit="tokens", above=0, **_BASIC
    )
    osl: float = option(
        256.0, "Output tokens of a request.", label="Output tokens", unit="tokens", above=0, **_BASIC
    )
    mix: str | None = option(
        None,
        "Lengths by share in place of `isl=` and `osl=`, like 2455:510:0.3,496:18:0.7; for a fleet of "
        "several models with names: NAME=in:out:share.",
        label="Or lengths by share",
        **_ABOUT,
    )
    length_cv: float = option(
        0.0,
        "Coefficient of variation of lengths (lognormal).",
        label="Lengths vary by",
        least=0,
        **_ABOUT,
    )
    burstiness: float = burstiness_option()

    def made(self, mix_field: str = "mix") -> "Workload":
        """The requests, read or made by the fields; `mix_field` names the mix. Raises BadInputError."""
        from tangram_sim.serving.synthetic import LengthMix, synthetic

        if self.rates is not None:
            return self._at_rates(self.rates, mix_field)
        if self.trace is not None:
            return TraceRequests(
                where=self.where, rate=self.rate, seed=self.seed, burstiness=self.burstiness
            ).read(self.trace)
        if self.rate is None:
            raise BadInputError(
                "no requests: give `trace=FILE.csv`, or `rate=R` or `rates=FILE.csv` with `isl=` and `osl=`"
            )
        parts = [LengthMix(self.isl, self.osl, 1.0, self.length_cv)]
        if self.mix is not None:
            parts = parse_mix(self.mix, self.length_cv, mix_field)
        return synthetic(self.requests, self.rate, parts, self.seed, self.burstiness)

    def _at_rates(self, rates: Path, mix_field: str) -> "Workload":
        """Requests made with lengths from the fields and arrival rates by time window from a file."""
        from tangram_sim.serving.rates_file import arrivals_at, read_rates

        if self.trace is not None or self.rate is not None or self.burstiness != 1.0:
            raise BadInputError(
                "`rates=` say when requests come; leave `trace=`, `rate=` and `burstiness=` out"
            )
        windows = read_rates(rates, chosen_rows(self.where))
        times = arrivals_at(windows, self.requests, self.seed)
        made = replace(self, rates=None, where=(), rate=1.0, requests=len(times)).made(mix_field)
        return replace(made, arrival_s=times)

    def without_arrivals(self, who: str) -> "Workload":
        """Requests whose sending times simulated clients set. Raises BadInputError if a rate is given."""
        if self.rate is not None or self.rates is not None or self.burstiness != 1.0:
            raise BadInputError(
                f"{who} say when requests come; leave `rate=`, `rates=` and `burstiness=` out"
            )
        return replace(self, rate=None if self.trace is not None else 1.0).made()


@described
@dataclass(frozen=True, slots=True)
class PlannedRequests(CountedRequests):
    """Requests to plan a service for."""

    workload: str | None = option(
        None,
        "Of a model: a trace (CSV), or a mix like 2455:510:0.3,496:18:0.7; of several models with names, "
        "like llama3-8b=496:18:0.7,llama3-70b=2455:510:0.3.",
        label="Requests: a trace, or lengths by share",
        **_BASIC,
    )

    def made(self, objective: str) -> "Workload":
        """The requests, read from a file or made; for `makespan` their arrival times do not matter.

        Raises BadInputError if no requests, or no rate where one is needed, are given.
        """
        from tangram_sim.serving.synthetic import drawn_note

        if self.workload is None:
            raise BadInputError(
                "no requests: give `workload=TRACE.csv`, or a mix like 2455:510:0.3,496:18:0.7"
            )
        if self.workload.lower().endswith(".csv"):
            return MadeRequests(
                trace=Path(self.workload),
                where=self.where,
                rate=self.rate,
                requests=self.requests,
                seed=self.seed,
            ).made()
        if self.rate is None and objective != "makespan":
            raise BadInputError(f"`objective={objective}` is of a rate: give `rate=R`, requests a second")
        made = MadeRequests(
            rate=1.0 if self.rate is None else self.rate,
            mix=self.workload,
            requests=self.requests,
            seed=self.seed,
        ).made("workload")
        mix = parse_mix(self.workload, 0.0, "workload")
        note = drawn_note(mix, None if objective == "makespan" else self.rate, made, self.seed)
        return replace(made, notes=(*made.notes, note)) if note else made


def parse_mix(text: str, length_cv: float, name: str) -> "list[LengthMix]":
    """Parts of a mix from `[model=]in:out[:share],...`; all or none name a model. `name`: the field."""
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
                f"`{name}={text}`: {part!r} given; a part is in:out or in:out:share, like 496:18:0.7, "
                "or MODEL=in:out:share"
            )
        share = numbers[2] if len(numbers) == 3 else 1.0
        parts.append(LengthMix(numbers[0], numbers[1], share, length_cv, model.strip()))
    if len({bool(part.model) for part in parts}) > 1:
        raise BadInputError(f"`{name}={text}`: some parts name a model and others do not; name it in all")
    return parts


def slo_of(text: str | None) -> "Slo":
    """Objective read from `ttft=1,tpot=0.05`; empty: no limits. Raises BadInputError, UnknownNameError."""
    from tangram_sim.serving.outcome import Slo

    limits: Mapping[str, float] = dict(_limit(part) for part in text.split(",")) if text else {}
    return Slo(limits.get("ttft", inf), limits.get("tpot", inf))


def _limit(part: str) -> tuple[str, float]:
    name, value = _pair(part, "slo")
    if name not in ("ttft", "tpot"):
        raise unknown_name(
            "objective in `slo=`", name, ("ttft", "tpot"), "Give it like `slo=ttft=1,tpot=0.05`."
        )
    unit, scale = ("ms", 1e-3) if value.endswith("ms") else ("s", 1.0)
    try:
        seconds = float(value.removesuffix(unit)) * scale
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < inf:
        raise BadInputError(
            f"`slo={part}`: {value!r} given; seconds above 0 are wanted, like {name}=1 or {name}=50ms"
        )
    return name, seconds


def chosen_rows(where: tuple[str, ...]) -> dict[str, str]:
    """Required values by column of a trace. Raises BadInputError."""
    return dict(_pair(text, "where") for text in where)


def _pair(text: str, field: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise BadInputError(f"`{field}={text}`: give it like NAME=VALUE")
    return name.strip(), value.strip()
