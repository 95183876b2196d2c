"""Statistics of a workload or of rates over time: rate, burstiness, lengths, request types."""

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from tangram_sim.serving.rates_file import RateWindow
from tangram_sim.serving.workload import Ints, Workload
from tangram_sim.studies.documents import Document, VersionedAnswer

_MINUTE_S = 60.0
_PARTS = 3  # classes of prompts, and of outputs within each


class LengthsDocument(Document):
    """Tokens of a request."""

    mean: float
    cv: float = Field(description="coefficient of variation")
    p50: float
    p90: float
    p99: float
    most: int


class RequestTypeDocument(Document):
    """A type of similar requests, at their mean lengths."""

    input_tokens: float
    output_tokens: float
    share: float


class ArrivalsDocument(VersionedAnswer):
    """Rate and burstiness of arrivals."""

    span_s: float
    rate_rps: float
    burstiness_cv: float = Field(
        description="coefficient of variation of the gaps between arrivals; of streams, mean by requests"
    )
    notes: list[str]


class WorkloadDocument(ArrivalsDocument):
    """Output of `tangram serve workload describe --json`: rate, burstiness, lengths and request types."""

    requests: int
    busiest_minute_rps: float
    input_tokens: LengthsDocument
    output_tokens: LengthsDocument
    types: list[RequestTypeDocument]
    prefixes: int
    prefix_share: float = Field(description="of the prompt tokens, in prefixes that several requests share")
    cached_share: float = Field(description="of the prompt tokens, cached as the trace tells")


class RateStreamDocument(Document):
    """One stream of a file of rates: a client of a pool, or the whole file."""

    name: str
    rate_rps: float = Field(description="mean over its windows")
    most_rps: float
    least_rps: float
    burstiness_cv: float = Field(description="coefficient of variation of gaps, mean by requests")
    share: float = Field(description="of all requests")


class RatesDocument(ArrivalsDocument):
    """Output of `tangram serve workload describe --json` for a file of rates: what comes when."""

    windows: int
    requests: float = Field(description="expected, all streams together")
    busiest_window_rps: float = Field(description="greatest rate of all streams at one time")
    quietest_window_rps: float
    streams: list[RateStreamDocument]


def describe_rates(windows: Sequence[RateWindow]) -> RatesDocument:
    """The figures of a file of rates, for `tangram serve workload describe`."""
    begin_s, end_s = min(window.start_s for window in windows), max(window.end_s for window in windows)
    starts, ends = (np.array([getattr(window, name) for window in windows]) for name in ("start_s", "end_s"))
    length = ends - starts
    rate = np.array([window.rate_rps for window in windows])
    cv = np.array([window.cv for window in windows])
    requests = rate * length
    every = float(requests.sum())
    # The rate of all streams together changes where a window begins or ends.
    edges = np.unique([starts, ends])
    change = np.zeros(len(edges))
    np.add.at(change, np.searchsorted(edges, starts), rate)
    np.add.at(change, np.searchsorted(edges, ends), -rate)
    together = np.cumsum(change)[:-1]
    names = np.array([window.stream for window in windows])
    streams = []
    for name in dict.fromkeys(names.tolist()):
        own = names == name
        count = float(requests[own].sum())
        streams.append(
            RateStreamDocument(
                name=name.strip("/"),
                rate_rps=count / float(length[own].sum()),
                most_rps=float(rate[own].max()),
                least_rps=float(rate[own].min()),
                burstiness_cv=float((cv * requests)[own].sum()) / count if count else 0.0,
                share=count / every if every else 0.0,
            )
        )
    notes = ["rates only: a workload needs lengths, as `isl` and `osl` or `mix` give them"]
    return RatesDocument(
        windows=len(windows),
        span_s=end_s - begin_s,
        requests=every,
        rate_rps=every / (end_s - begin_s),
        busiest_window_rps=float(together.max()),
        quietest_window_rps=float(max(together.min(), 0.0)),
        burstiness_cv=float((cv * requests).sum()) / every if every else 0.0,
        streams=sorted(streams, key=lambda stream: -stream.share),
        notes=notes,
    )


def describe_workload(workload: Workload) -> WorkloadDocument:
    """The figures of a workload, for `tangram serve workload describe`."""
    gaps = np.diff(workload.arrival_s)
    mean = float(gaps.mean()) if len(gaps) else 0.0
    # Counted by the minutes that have arrivals: most of a long trace may have none.
    _, minutes = np.unique((workload.arrival_s - workload.arrival_s[0]) // _MINUTE_S, return_counts=True)
    length = min(_MINUTE_S, workload.span_s) or 1.0
    total = float(workload.input_tokens.sum())
    place, types = request_types(workload)
    users = np.bincount(workload.prefix[workload.prefix >= 0], minlength=1)
    several = (workload.prefix >= 0) & (users[np.maximum(workload.prefix, 0)] > 1)
    return WorkloadDocument(
        requests=len(workload),
        span_s=workload.span_s,
        rate_rps=workload.rate_rps,
        busiest_minute_rps=float(minutes.max()) / length,
        burstiness_cv=float(gaps.std()) / mean if mean > 0 else 0.0,
        input_tokens=_lengths(workload.input_tokens),
        output_tokens=_lengths(workload.output_tokens),
        types=[
            RequestTypeDocument(
                input_tokens=lengths[0],
                output_tokens=lengths[1],
                share=float((place == kind).sum()) / len(workload),
            )
            for kind, lengths in enumerate(types)
        ],
        prefixes=int((users > 1).sum()),
        prefix_share=float(workload.prefix_tokens[several].sum()) / total,
        cached_share=float(workload.cached_tokens.sum()) / total,
        notes=list(workload.notes),
    )


def _lengths(tokens: Ints) -> LengthsDocument:
    p50, p90, p99 = np.percentile(tokens, (50, 90, 99))
    mean = float(tokens.mean())
    return LengthsDocument(
        mean=mean,
        cv=float(tokens.std()) / mean,
        p50=float(p50),
        p90=float(p90),
        p99=float(p99),
        most=int(tokens.max()),
    )


def request_types(workload: Workload, chosen: Ints | None = None) -> tuple[Ints, list[tuple[float, float]]]:
    """(type of every request, or of every `chosen` one; mean prompt and output tokens of every type).

    Types are cells of a grid of 3 x 3: prompts cut where their tokens, summed from the shortest, reach equal
    parts, then outputs likewise within each. Empty cells are left out.
    """
    inputs, outputs = workload.input_tokens, workload.output_tokens
    if chosen is not None:
        inputs, outputs = inputs[chosen], outputs[chosen]
    rows = _cut(inputs)
    cell = np.zeros(len(inputs), dtype=np.int64)
    for row in range(_PARTS):
        mine = np.flatnonzero(rows == row)
        if len(mine):
            cell[mine] = row * _PARTS + _cut(outputs[mine])
    kept, place = np.unique(cell, return_inverse=True)
    means = [(float(inputs[cell == item].mean()), float(outputs[cell == item].mean())) for item in kept]
    return place.astype(np.int64), means


def _cut(tokens: Ints) -> Ints:
    """A class from 0 to 2 for each value, so that classes have about equal sums of tokens.

    Equal values are in the same class.
    """
    values, counts = np.unique(tokens, return_counts=True)
    below = np.cumsum(values * counts) - 0.5 * values * counts
    classes = np.minimum((_PARTS * below / (values * counts).sum()).astype(np.int64), _PARTS - 1)
    return np.asarray(classes[np.searchsorted(values, tokens)], dtype=np.int64)
