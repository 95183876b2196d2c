"""Cells of measured tables: numbers, degrees, versions and loads, read or refused with a reason."""

import math
import re

from tangram_sim.errors import TangramError
from tangram_validate.serving.runs import (
    BURST,
    CLOSED,
    DECODE,
    FIRST,
    LIMITED,
    OFFLINE,
    OPEN,
    SHAREGPT,
    STATIC,
)

# How scenarios of measured tables begin, and the load each is.
SCENARIOS = (
    ("closed", CLOSED),
    ("open loop", OPEN),
    ("open-loop ShareGPT", BURST),
    ("offline", OFFLINE),
    ("static batch (no", STATIC),
    ("static batch", BURST),
    ("burst", BURST),
    ("MLPerf Offline", OFFLINE),
    ("MLPerf Server", LIMITED),
    ("MLPerf Interactive", LIMITED),
    ("decode only", DECODE),
    ("first token", FIRST),
)
LARGEST_NODE = 8
RACKS = ("GB200", "GB300")
_LEAST, _MOST = 1e-15, 1e18  # of a figure that somebody measured, whatever its unit


class RowError(TangramError):
    """A row cannot be read as a measured run; the message is the reason given to the user."""


def number(row: dict[str, str], column: str) -> float:
    """A cell as a number, 0.0 where it is empty or absent."""
    cell = row.get(column, "")
    if not cell:
        return 0.0
    try:
        value = float(cell)
    except ValueError:
        raise RowError(f"column {column} holds {cell[:20]!r}, which is no number") from None
    if not math.isfinite(value) or value < 0:
        raise RowError(f"column {column} holds {cell[:20]}, a number of zero or more is wanted")
    if value and not _LEAST <= value <= _MOST:
        raise RowError(f"column {column} holds {cell[:20]}; {_LEAST:g} to {_MOST:g} can be meant")
    return value


def arrivals(scenario: str) -> tuple[float, float]:
    """(requests, a second) of "... 300 requests, 10 sessions/s"; 0.0 for what is not said."""
    sent, rate = (re.search(rf"([\d.]+) {word}", scenario) for word in ("requests", "sessions/s"))
    return float(sent[1]) if sent else 0.0, float(rate[1]) if rate else 0.0


def dataset(row: dict[str, str]) -> str:
    """The dataset whose lengths a burst has; "" where all requests are alike.

    gpustack's pages send a thousand conversations of ShareGPT, and requests of fixed lengths under "Other
    Benchmark Cases" (docs/performance-lab of github.com/gpustack/gpustack, "Benchmark Dataset").
    """
    if "ShareGPT" in row.get("scenario", ""):
        return SHAREGPT
    told = row.get("source", "").startswith("gpustack/") and row.get("note", "")
    return SHAREGPT if told and not told.startswith("Other Benchmark Cases") else ""


def fraction(row: dict[str, str]) -> float:
    """The share of the card given to the engine, 0.0 where it is not said."""
    value = number(row, "gpu_memory_utilization")
    if value > 1:
        raise RowError(f"gpu_memory_utilization {value:g} is more than the whole card")
    return value


def degrees(row: dict[str, str], gpu: str) -> tuple[int, int, int]:
    """(tp, attention dp, ep) of a row.

    InferenceX's expert-parallel degree was multiplied into others where tables were made of it: rows of r
    ranks with ep = r are listed with r x r GPUs. They are read as r ranks.
    """
    tp, dp, ep = (max(int(number(row, name)), 1) for name in ("tp", "dp", "ep"))
    gpus = int(number(row, "n_gpus"))
    if (
        dp > 1
        and gpus
        and tp * dp > gpus >= tp
        and tp % dp == 0
        and tp * max(int(number(row, "pp")), 1) == gpus
    ):
        # SGLang's `--tp 8 --dp 8 --enable-dp-attention`: eight ranks, each with requests of its own.
        tp //= dp
    ranks = tp * dp
    if tp == dp > 1 and ep == ranks:
        return 1, dp, dp
    if ranks == ep * ep and ranks > LARGEST_NODE and gpu not in RACKS:
        return (1, ep, ep) if tp == 1 else (ep, 1, ep)
    if ranks % ep:
        raise RowError(f"ep {ep} does not divide tp x dp, {ranks}")
    return tp, dp, ep


def version(text: str, engine: str) -> str:
    """The engine's own version out of lists of several engines'; "" where none is told."""
    marks = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
    if marks[engine] in text:
        text = text.split(marks[engine])[1].lstrip(": v").split(";")[0]
    return text.split(" ")[0].lstrip("v")
