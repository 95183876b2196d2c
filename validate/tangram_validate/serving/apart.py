"""Rows with prefill and decode on workers of their own: how many workers of which degrees there were.

Tables of such runs come in two kinds. In one the row's note says how many workers there were and how many
requests each of them had. In the other (InferenceX's own listings) it says one worker with one request
whatever was in flight, so that the degrees are those of one worker, or all workers' added up. Where both
kinds list the same run, its times being the same, the first kind's layout is taken for both.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tangram_sim.models import Model
from tangram_sim.parallelizers.laws import tensor_law
from tangram_validate.serving.cells import RowError, number
from tangram_validate.serving.runs import PromptPool

NOTE = re.compile(r"P (\d+)x tp(\d+) bs(\d+); D (\d+)x tp(\d+) bs(\d+)")
DOUBT = "the row states one request on one decode worker, whatever is in flight: its layout is not known"
# Cells that two listings of one run share.
_SAME = ("gpu", "precision", "engine", "isl", "osl", "concurrency", "ttft_ms", "tpot_ms")
Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ApartLayout:
    """Workers that decode, each with these degrees, and the pool that takes the prompts."""

    workers: int
    tp: int
    attention_dp: int
    ep: int
    prompts: PromptPool
    doubt: str


def is_apart(row: Row) -> bool:
    """Whether a row's prompts were served on other workers than its outputs."""
    return row.get("mode", "agg") == "disagg"


def known_layouts(rows: Iterable[Row]) -> dict[tuple[str, ...], Row]:
    """Rows that say how many workers there were, by what they share with other listings of the same run."""
    return {
        _key(row): row
        for row in rows
        if is_apart(row) and NOTE.match(row.get("note", "")) and not _doubt(row)
    }


def apart_layout(row: dict[str, str], model: Model, known: Mapping[tuple[str, ...], Row]) -> ApartLayout:
    """The workers of a row's run. Raises RowError for a row that does not say what they were."""
    told = dict(known.get(_key(row), row))
    match = NOTE.match(told.get("note", ""))
    if match is None:
        raise RowError("prefill and decode apart, and no note 'P 1x tp8 bs1; D 2x tp8 bs16' on the workers")
    pools, prompt_tp, _, workers, _, _ = (int(text) for text in match.groups())
    tp, dp, ep = (max(int(number(told, name)), 1) for name in ("tp", "dp", "ep"))
    doubt = DOUBT if _doubt(told) else ""
    if tensor_law(model, tp):  # ranks with attention data parallelism, listed as if they shared heads
        tp, dp, ep, doubt = 1, tp * dp, tp * dp, doubt or DOUBT
    if (tp * dp) % ep:
        ep = 1
    every = int(number(told, "n_gpus"))
    left, odd = divmod(every - workers * tp * dp, max(pools, 1))
    ranks = left if every and left >= 1 and not odd else prompt_tp
    if ranks % prompt_tp or tensor_law(model, prompt_tp):
        prompt_tp = 1
    side = ranks // prompt_tp
    pool = PromptPool(max(pools, 1), prompt_tp, side, ranks if side > 1 and dp > 1 else 1)
    return ApartLayout(max(workers, 1), tp, dp, ep, pool, doubt)


def _doubt(row: Row) -> bool:
    """Whether the requests that a row gives its workers are less than half of those in flight."""
    match = NOTE.match(row.get("note", ""))
    if match is None:
        return True
    workers, batch = int(match.group(4)), int(match.group(6))
    cells = dict(row)
    return workers * batch * max(int(number(cells, "dp")), 1) <= number(cells, "concurrency") / 2


def _key(row: Row) -> tuple[str, ...]:
    return tuple(row.get(name, "") for name in _SAME)
