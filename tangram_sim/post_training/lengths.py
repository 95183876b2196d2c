"""Response lengths: a lognormal distribution cut at the cap, or observed lengths.

The draws of one prompt are correlated: a hard prompt is long in all its samples, so groups finish unevenly.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from math import exp, log, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from tangram_sim.datafiles import read_text
from tangram_sim.errors import BadInputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Of logged runs that print both a mean and a share at the cap: 0.58 to 0.77, median 0.74.
USUAL_SIGMA = 0.7
USUAL_CORRELATION = 0.5  # of the logarithms of two samples of one prompt; assumed
_WIDEST = 12.0  # standard deviations of the logarithm within which the median is sought


class ResponseLengths(ABC):
    """A distribution of response lengths in tokens, described by its quantiles."""

    cap: int
    correlation: float

    @abstractmethod
    def quantile(self, share: Floats) -> Floats:
        """Tokens that a share (0 to 1) of the responses does not exceed; same shape as `share`."""

    @property
    @abstractmethod
    def mean(self) -> float:
        """Mean tokens of a response, with responses cut at the cap."""

    @property
    @abstractmethod
    def mean_square(self) -> float:
        """Mean of the squared tokens of a response, with responses cut at the cap."""

    def draw(self, prompts: int, samples: int, seed: int) -> Ints:
        """Tokens of `samples` responses to each of `prompts` prompts: [prompts, samples], at least 1."""
        rng = np.random.default_rng(seed)
        common = rng.standard_normal((prompts, 1))
        own = rng.standard_normal((prompts, samples))
        score = sqrt(self.correlation) * common + sqrt(1.0 - self.correlation) * own
        tokens = np.rint(self.quantile(ndtr(score)))
        return np.clip(tokens, 1, self.cap).astype(np.int64)

    def longest(self, count: int) -> float:
        """Typical length of the longest of `count` responses: the quantile that one of them exceeds."""
        return float(self.quantile(np.array([1.0 - 1.0 / (count + 1.0)]))[0])


@dataclass(frozen=True)
class LognormalLengths(ResponseLengths):
    """Lengths of min(exp(mu + sigma z), cap) tokens with z standard normal."""

    mu: float
    sigma: float
    cap: int
    correlation: float = USUAL_CORRELATION

    def __post_init__(self) -> None:
        if self.sigma < 0 or self.cap < 1 or not 0 <= self.correlation <= 1:
            raise BadInputError(
                f"lengths: sigma {self.sigma:g}, cap {self.cap}, correlation {self.correlation:g}: give a "
                "sigma of 0 or more, a cap of 1 token or more and a correlation from 0 to 1"
            )

    def quantile(self, share: Floats) -> Floats:
        """See ResponseLengths."""
        inside = np.clip(share, 1e-12, 1.0 - 1e-12)
        return np.asarray(np.minimum(np.exp(self.mu + self.sigma * ndtri(inside)), self.cap))

    @property
    def capped_share(self) -> float:
        """Share of responses that end at the cap."""
        if not self.sigma:
            return float(self.mu >= log(self.cap))
        return float(ndtr((self.mu - log(self.cap)) / self.sigma))

    @property
    def mean(self) -> float:
        """See ResponseLengths."""
        return self._moment(1)

    @property
    def mean_square(self) -> float:
        """See ResponseLengths."""
        return self._moment(2)

    def _moment(self, order: int) -> float:
        """Mean of the tokens to the power `order`, with responses cut at the cap."""
        if not self.sigma:
            return float(min(exp(self.mu), self.cap) ** order)
        below = (log(self.cap) - self.mu) / self.sigma
        free = exp(order * self.mu + (order * self.sigma) ** 2 / 2.0) * ndtr(below - order * self.sigma)
        return float(free + self.cap**order * ndtr(-below))


@dataclass(frozen=True)
class ObservedLengths(ResponseLengths):
    """Observed lengths in tokens; draws use their empirical quantiles."""

    observed: tuple[int, ...]
    cap: int
    correlation: float = USUAL_CORRELATION

    def __post_init__(self) -> None:
        if not self.observed or min(self.observed) < 1:
            raise BadInputError("observed lengths: give at least one, each of 1 token or more")

    @cached_property
    def _sorted(self) -> Floats:
        return np.minimum(np.sort(np.array(self.observed, dtype=np.float64)), self.cap)

    def quantile(self, share: Floats) -> Floats:
        """See ResponseLengths."""
        place = np.minimum((np.asarray(share) * len(self.observed)).astype(np.int64), len(self.observed) - 1)
        return self._sorted[place]

    @property
    def mean(self) -> float:
        """See ResponseLengths."""
        return float(self._sorted.mean())

    @property
    def mean_square(self) -> float:
        """See ResponseLengths."""
        return float((self._sorted**2).mean())


def lognormal(
    mean: float, cap: int, sigma: float = USUAL_SIGMA, correlation: float = USUAL_CORRELATION
) -> LognormalLengths:
    """Lengths with this mean after the cut at `cap`, and this sigma of the logarithm before the cut.

    Raises BadInputError for a mean that no such distribution has.
    """
    if not 1 <= mean <= cap:
        raise BadInputError(f"mean response of {mean:g} tokens with a cap of {cap:,}: give 1 up to the cap")

    def excess(mu: float) -> float:
        return LognormalLengths(mu, sigma, cap).mean - mean

    high = log(cap) + _WIDEST * max(sigma, 0.01)
    if excess(high) <= 0:  # every response ends at the cap
        return LognormalLengths(high, sigma, cap, correlation)
    low = log(mean) - _WIDEST * max(sigma, 0.01) - sigma**2
    return LognormalLengths(float(brentq(excess, low, high, xtol=1e-12)), sigma, cap, correlation)


def lognormal_capped(mean: float, cap: int, capped_share: float) -> LognormalLengths:
    """Lengths with this mean after the cut and this share of responses at the cap.

    Raises BadInputError where the two contradict each other.
    """
    if not 0 < capped_share < 1:
        raise BadInputError(f"share at the cap {capped_share:g}: give a share between 0 and 1")
    below = float(ndtri(1.0 - capped_share))

    def made(sigma: float) -> LognormalLengths:
        return LognormalLengths(log(cap) - below * sigma, sigma, cap)

    def excess(sigma: float) -> float:
        return made(sigma).mean - mean

    spread = (1e-6, 6.0) if below > 0 else (1e-6, 40.0)
    if excess(spread[0]) * excess(spread[1]) > 0:
        raise BadInputError(
            f"mean response {mean:g}, cap {cap:,} and {capped_share:.1%} at the cap: no lognormal "
            "distribution has all three; give the mean and the cap alone"
        )
    return made(float(brentq(excess, *spread, xtol=1e-12)))


def read_lengths(path: Path, cap: int = 0) -> ObservedLengths:
    """Observed lengths from a file with one whole number per line (the first of several columns).

    They are cut at `cap` tokens; 0: not cut, and the longest is the cap. Raises BadInputError naming the line
    of anything else; a first line of words is skipped as a heading.
    """
    found = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        cell = line.split(",")[0].strip()
        if not cell:
            continue
        try:
            tokens = float(cell)
        except ValueError:
            if number == 1:
                continue
            raise BadInputError(f"{path}, line {number}: {cell!r}; a number of tokens is wanted") from None
        if not 1 <= tokens < 1e8:
            raise BadInputError(f"{path}, line {number}: {cell}; give 1 token or more")
        found.append(round(tokens))
    if not found:
        raise BadInputError(f"{path}: no lengths in it; give one number of tokens a line")
    return ObservedLengths(tuple(found), cap or max(found))
