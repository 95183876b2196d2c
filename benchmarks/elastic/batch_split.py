"""Microbatches shared out among unequal pipelines."""

import re
from itertools import groupby

from benchmarks.elastic.figures import Answer, Data, Figure, RefusedError
from tangram_sim.reliability.stragglers.replicas import split_microbatches

_GROUP = re.compile(r"(\d+)(?: pipelines?)? of \d+")
_MICROBATCHES = re.compile(r"([\d,]+) microbatches")
_SECONDS = re.compile(r"((?:[\d.]+, )*[\d.]+) ms each")


def compute(figure: Figure, data: Data) -> Answer:
    """Shares in the order of the setting, equal neighbours once with their number."""
    del data
    counts = [int(number) for number in _GROUP.findall(figure.setting)]
    total, seconds = _MICROBATCHES.search(figure.setting), _SECONDS.search(figure.setting)
    times = [float(number) for number in seconds[1].split(", ")] if seconds else []
    if total is None or not counts or len(counts) != len(times):
        raise RefusedError("the setting does not name pipelines, microbatches and seconds")
    each = [time for time, count in zip(times, counts, strict=True) for _ in range(count)]
    shares = split_microbatches(each, int(total[1].replace(",", "")))
    runs = [(share, len(list(same))) for share, same in groupby(shares)]
    return Answer(", ".join(f"{share} x{count}" if count > 1 else str(share) for share, count in runs))
