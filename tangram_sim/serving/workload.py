"""The requests that a service receives, as columns in the order of arrival. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_NOBODY: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Workload:
    """Requests by column, in ascending order of arrival.

    `prefix` is the number of a prefix that several requests share (-1: none), `prefix_tokens` its length in
    the prompt. `keeps`: the request's further tokens extend that prefix (a conversation). `cached_tokens` of
    the prompt count as cached on any replica (for traces that record hits, not prefixes). `models` are the
    models requested, `model` the index of each request's; both empty where no model is named.
    """

    arrival_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    prefix: Ints
    prefix_tokens: Ints
    keeps: NDArray[np.bool_]
    cached_tokens: Ints
    notes: tuple[str, ...] = field(default=())
    models: tuple[str, ...] = ()
    model: Ints = field(default_factory=lambda: _NOBODY)

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def prefixes(self) -> int:
        """Number of different shared prefixes."""
        return int(self.prefix.max(initial=-1)) + 1

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last."""
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0

    @property
    def rate_rps(self) -> float:
        """Requests per second between the first arrival and the last; 0 where all arrive at once."""
        return (len(self) - 1) / self.span_s if self.span_s > 0 else 0.0

    def model_of(self, request: int) -> str:
        """Model that a request asks for; empty where no model is named."""
        return self.models[self.model[request]] if self.models else ""

    def repeated(self, times: int) -> "Workload":
        """These requests repeated `times` times at the same rate; repeated requests share their prefixes."""
        period_s = self.span_s * len(self) / max(len(self) - 1, 1)
        rounds = np.repeat(np.arange(times, dtype=np.float64), len(self))
        return replace(
            self,
            arrival_s=np.tile(self.arrival_s, times) + rounds * period_s,
            input_tokens=np.tile(self.input_tokens, times),
            output_tokens=np.tile(self.output_tokens, times),
            prefix=np.tile(self.prefix, times),
            prefix_tokens=np.tile(self.prefix_tokens, times),
            keeps=np.tile(self.keeps, times),
            cached_tokens=np.tile(self.cached_tokens, times),
            model=np.tile(self.model, times),
        )

    def chosen(self, requests: Ints) -> "Workload":
        """The requests with these numbers; a number may occur several times."""
        return replace(
            self,
            arrival_s=self.arrival_s[requests],
            input_tokens=self.input_tokens[requests],
            output_tokens=self.output_tokens[requests],
            prefix=self.prefix[requests],
            prefix_tokens=self.prefix_tokens[requests],
            keeps=self.keeps[requests],
            cached_tokens=self.cached_tokens[requests],
            model=self.model[requests] if len(self.model) else self.model,
        )

    def of_models(self, models: Sequence[str], model: Ints) -> "Workload":
        """These requests with models assigned: request i asks for `models[model[i]]`."""
        return replace(self, models=tuple(models), model=np.asarray(model, dtype=np.int64))


def plain(arrival_s: Floats, input_tokens: Ints, output_tokens: Ints) -> Workload:
    """A workload of requests without shared prefixes."""
    count = len(arrival_s)
    none = np.zeros(count, dtype=np.int64)
    return Workload(
        arrival_s=np.asarray(arrival_s, dtype=np.float64),
        input_tokens=np.asarray(input_tokens, dtype=np.int64),
        output_tokens=np.asarray(output_tokens, dtype=np.int64),
        prefix=none - 1,
        prefix_tokens=none,
        keeps=np.zeros(count, dtype=np.bool_),
        cached_tokens=none,
    )
