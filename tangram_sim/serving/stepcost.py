"""Time of an engine's iterations and capacity of its KV memory: the interface for simulators.

`StepCost` gives exact times for arrays of iterations; `StepTable` approximates them by few coefficients, so
that a simulator can jump over many iterations at once.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tangram_sim.cost.kernels import Floats, Number


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """KV memory of one replica in blocks, over all its attention data-parallel groups."""

    blocks: int
    block_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens of context that the KV cache holds."""
        return self.blocks * self.block_tokens


@dataclass(frozen=True, slots=True)
class KvCapacities:
    """KV memory of many replicas, as arrays."""

    blocks: NDArray[np.int64]
    block_tokens: int

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Tokens of context that each KV cache holds."""
        return self.blocks * self.block_tokens


class StepCost(ABC):
    """Seconds of one iteration of a replica, for any mix of prompts and decoding requests.

    Arguments are arrays that broadcast:
    - `rows`: prompt tokens processed in the iteration, all chunks together (0: pure decode);
    - `scores`: query-key pairs of those chunks: sum over chunks of q (c + q / 2), q rows after c cached ones;
    - `decodes`: requests that yield a token each;
    - `contexts`: sum of their contexts, in tokens.
    Pipeline stages are included: the result is the time until each request's next token.
    """

    @abstractmethod
    def step_s(self, rows: Number, scores: Number, decodes: Number, contexts: Number) -> Floats:
        """Seconds of the iteration on the replica, including host work that is not overlapped."""

    @abstractmethod
    def table(self, most_decodes: int, most_rows: int) -> "StepTable":
        """Step table for batches up to `most_decodes` and prompts up to `most_rows` tokens an iteration."""

    @property
    @abstractmethod
    def request_s(self) -> float:
        """Seconds that the server spends per request outside iterations: HTTP, tokenizer, first byte."""


@dataclass(frozen=True)
class StepTable:
    """Iterations linearised: pure decode is affine in the sum of contexts, prompts piecewise linear in rows.

    Pure decode of b requests with contexts summing to C (mean c = C / b):
        decode_s[b] + context_s[b] * C + window_s[b] * b * min(c, window_tokens)
    An iteration with n prompt rows, P query-key pairs and b decodes:
        interpolation of rows_s over row_knots at n + b, + score_s * P + mixed_context_s * C + beside_s[b]
        + mixed_window_s * b * min(c, window_tokens)
    where beside_s is what b decodes take there beside their rows: an engine's prompts hide behind decodes in
    part, so that a pass of both takes longer than one of so many rows. It takes no less than its decodes
    alone, and no less than the arithmetic alone as kernels were measured, w being window_tokens:
        least_s @ (1, n, P, b, C, min(P, n w), b min(c, w))
    `window_tokens` is 0 (and window_s 0) unless some layers slide a window.
    """

    decode_s: Floats  # index b, 0..most_decodes; decode_s[0] = 0
    context_s: Floats  # index b
    window_s: Floats  # index b
    window_tokens: int
    row_knots: Floats  # ascending, the first 1
    rows_s: Floats
    score_s: float
    mixed_context_s: float
    beside_s: Floats  # index b
    request_s: float = 0.0
    mixed_window_s: float = 0.0
    least_s: Floats = field(default_factory=lambda: np.zeros(7))

    @cached_property
    def stacked(self) -> tuple[Floats, Floats, Floats]:
        """(by number of decodes [4, b], by prompt rows [2, knots], least_s [7]) for compiled code."""
        decode = np.array([self.decode_s, self.context_s, self.window_s, self.beside_s], dtype=np.float64)
        rows = np.array([self.row_knots, self.rows_s], dtype=np.float64)
        return decode, rows, np.asarray(self.least_s, dtype=np.float64)

    def decode_step_s(self, decodes: int, contexts: float) -> float:
        """Seconds of one iteration of pure decode."""
        return float(self.decode_steps_s(decodes, contexts))

    def decode_steps_s(self, decodes: int | NDArray[np.int64], contexts: Number) -> Floats:
        """Seconds of each of several pure decode iterations (arrays)."""
        inside = np.minimum(contexts, decodes * float(self.window_tokens))
        return np.asarray(
            self.decode_s[decodes] + self.context_s[decodes] * contexts + self.window_s[decodes] * inside
        )

    def mixed_step_s(self, rows: float, scores: float, decodes: int, contexts: float) -> float:
        """Seconds of one iteration with prompts in it."""
        return float(self.mixed_steps_s(rows, scores, decodes, contexts))

    def mixed_steps_s(
        self, rows: Number, scores: Number, decodes: int | NDArray[np.int64], contexts: Number
    ) -> Floats:
        """Seconds of each of several iterations with prompts (arrays)."""
        tokens = np.interp(rows + decodes, self.row_knots, self.rows_s)
        inside = np.minimum(contexts, decodes * float(self.window_tokens))
        more = self.score_s * scores + self.mixed_context_s * contexts + self.mixed_window_s * inside
        seen = np.minimum(scores, rows * float(self.window_tokens))
        least = self.least_s @ np.array([np.ones_like(rows), rows, scores, decodes, contexts, seen, inside])
        seconds = tokens + more + self.beside_s[decodes]
        return np.asarray(np.maximum(np.maximum(seconds, least), self.decode_steps_s(decodes, contexts)))
