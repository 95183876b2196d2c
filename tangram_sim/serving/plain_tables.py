"""Step tables from a few numbers: constant slopes, or with speculative tokens."""

from dataclasses import replace

import numpy as np

from tangram_sim.serving.stepcost import StepTable


def linear_table(
    seats: int,
    *,
    step_s: float,
    decode_s: float = 0.0,
    context_s: float = 0.0,
    prompt_s: float = 0.0,
    score_s: float = 0.0,
    request_s: float = 0.0,
) -> StepTable:
    """A step table with constant slopes: decoding takes step_s + decode_s b + context_s C seconds.

    b requests decode, with C tokens of context in all. Prompts add `prompt_s` per token and `score_s` per
    query-key pair; `request_s` is spent per request outside iterations.
    """
    batch = np.arange(seats + 1.0)
    some = batch > 0
    most = 1e9  # prompt rows and decoding requests of an iteration
    return StepTable(
        decode_s=np.where(some, step_s + decode_s * batch, 0.0),
        context_s=np.where(some, context_s, 0.0),
        window_s=np.zeros(seats + 1),
        window_tokens=0,
        row_knots=np.array([0.0, most]),
        rows_s=np.array([step_s, step_s + prompt_s * most]),
        score_s=score_s,
        mixed_context_s=context_s,
        beside_s=np.zeros(seats + 1),
        request_s=request_s,
    )


def speculative(table: StepTable, tokens: float) -> StepTable:
    """The table of an engine whose pure decode iterations yield `tokens` per request on average.

    Represented as iterations of one token that take 1 / `tokens` of the time.
    """
    return replace(
        table,
        decode_s=table.decode_s / tokens,
        context_s=table.context_s / tokens,
        window_s=table.window_s / tokens,
    )
