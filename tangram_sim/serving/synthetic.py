"""Workloads generated from a seed: Poisson or bursty arrivals, fixed lengths or mixes of lengths."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tangram_sim.errors import BadInputError
from tangram_sim.serving.workload import Floats, Workload, plain
from tangram_sim.units import percent

MOST_REQUESTS = 10**7


@dataclass(frozen=True, slots=True)
class LengthMix:
    """Part of a mix: mean prompt and output tokens; `cv`: coefficient of variation (lognormal; 0: fixed).

    `model` is the model requested; empty: not stated.
    """

    input_tokens: float
    output_tokens: float
    share: float = 1.0
    cv: float = 0.0
    model: str = ""


def arrivals(count: int, rate_rps: float, seed: int, burstiness_cv: float = 1.0) -> Floats:
    """Arrival times, seconds, from 0: gamma gaps of mean 1/rate; cv 1: Poisson, 0: even, above 1: bursts."""
    if not 1 <= count <= MOST_REQUESTS:
        raise BadInputError(f"requests: {count} given; 1 to {MOST_REQUESTS:,} are wanted")
    if not 0 < rate_rps < float("inf"):
        raise BadInputError(f"rate: {rate_rps} given; requests a second, above 0, are wanted")
    if burstiness_cv < 0 or not np.isfinite(burstiness_cv):
        raise BadInputError(f"burstiness: {burstiness_cv} given; 0 (even), 1 (Poisson) or more is wanted")
    if burstiness_cv == 0:
        gaps = np.full(count, 1.0 / rate_rps)
    else:
        shape = 1.0 / burstiness_cv**2
        gaps = np.random.default_rng([seed, 1]).gamma(shape, 1.0 / (rate_rps * shape), count)
    gaps[0] = 0.0
    return np.cumsum(gaps)


def synthetic(
    count: int, rate_rps: float, mix: Sequence[LengthMix], seed: int, burstiness_cv: float = 1.0
) -> Workload:
    """`count` requests of a mix; the same seed gives the same requests.

    Raises BadInputError for impossible rates, counts, lengths and shares.
    """
    for part in mix:
        if part.input_tokens < 1 or part.output_tokens < 1 or part.share <= 0 or part.cv < 0:
            raise BadInputError(
                f"mix: {part.input_tokens:g} in, {part.output_tokens:g} out, share {part.share:g}, "
                f"cv {part.cv:g}; at least 1 token each way and a share above 0 are wanted"
            )
    random = np.random.default_rng([seed, 2])
    shares = np.array([part.share for part in mix])
    which = random.choice(len(mix), count, p=shares / shares.sum())
    spread = np.sqrt(np.log1p(np.array([part.cv for part in mix]) ** 2))[which]
    columns = []
    for means in ([part.input_tokens for part in mix], [part.output_tokens for part in mix]):
        drawn = np.exp(spread * random.standard_normal(count) - 0.5 * spread**2)
        columns.append(np.maximum(1, np.rint(np.array(means)[which] * drawn)).astype(np.int64))
    made = plain(arrivals(count, rate_rps, seed, burstiness_cv), columns[0], columns[1])
    models = tuple(dict.fromkeys(part.model for part in mix))
    if models == ("",):
        return made
    return made.of_models(models, np.array([models.index(part.model) for part in mix])[which])


def drawn_note(mix: Sequence[LengthMix], rate_rps: float | None, made: Workload, seed: int) -> str:
    """Note on the rate and shares requested of `synthetic` and those drawn, for fixed lengths; or empty.

    A sample of some hundred requests is off by percents, and so is everything planned for it.
    """
    shares: dict[tuple[str, int, int], float] = {}
    for part in mix:
        key = (part.model, round(part.input_tokens), round(part.output_tokens))
        shares[key] = shares.get(key, 0.0) + part.share
    total = sum(shares.values())
    asked, drawn = [], []
    if rate_rps is not None:
        asked.append(f"{rate_rps:.4g} requests/s")
        drawn.append(f"{made.rate_rps:.4g} requests/s")
    for (model, isl, osl), share in shares.items() if len(shares) > 1 else ():
        alike = (made.input_tokens == isl) & (made.output_tokens == osl)
        if model:
            alike &= made.model == made.models.index(model)
        asked.append(f"{f'{model} ' if model else ''}{isl}:{osl} {percent(share / total, 1)}")
        drawn.append(percent(alike.mean(), 1))
    if not asked:
        return ""
    return (
        f"asked: {', '.join(asked)}; drawn and planned for: {', '.join(drawn)} ({len(made):,} requests, "
        f"`seed={seed}`); more `requests=` come nearer"
    )
