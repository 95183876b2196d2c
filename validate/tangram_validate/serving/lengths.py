"""Lengths of requests of which a benchmark tells the mean and the bounds only."""

import numpy as np

from tangram_sim.serving.workload import Floats

# vLLM's benchmark drops conversations of fewer than 4 tokens on either side, prompts of more than 1,024 and
# both together of more than 2,048 (vllm/benchmarks/datasets.py, `is_valid_sequence`).
LEAST, LONGEST_PROMPT, LONGEST_BOTH = 4.0, 1024.0, 2048.0
SEED = 2048  # which prompt goes with which output is not told


def sharegpt_lengths(count: int, isl: float, osl: float) -> tuple[Floats, Floats]:
    """(prompt tokens, output tokens) of `count` conversations of ShareGPT as vLLM's benchmark takes them."""
    prompts = spread_lengths(count, isl, LEAST, LONGEST_PROMPT)
    outputs = spread_lengths(count, osl, LEAST, LONGEST_BOTH - isl)
    random = np.random.default_rng(SEED)
    return random.permutation(prompts), random.permutation(outputs)


def spread_lengths(count: int, mean: float, least: float, most: float) -> Floats:
    """`count` lengths between bounds, of this mean, ascending: those at the middles of as many equal shares.

    Where mean and bounds are all that is known the distribution of greatest entropy is a truncated
    exponential (Jaynes, 1957); outputs of services are found to be exponential (ServeGen, arXiv:2505.09999,
    section 3). Means outside the bounds' inner part are served by equal lengths.
    """
    shares = (np.arange(count) + 0.5) / count
    if not least < mean < (least + most) / 2:
        return np.full(count, mean)
    low, high = 1e-9, 1.0 / (mean - least) + 1.0
    lengths = np.full(count, mean)
    for _ in range(60):
        fall = (low + high) / 2
        reach = -np.expm1(-fall * (most - least))
        lengths = least - np.log1p(-shares * reach) / fall
        low, high = (fall, high) if lengths.mean() > mean else (low, fall)
    return lengths
