"""Plans of small random problems are the best of all plans: a few of what the benchmark holds 200 to."""

import pytest

from benchmarks.serving_brute_force import FAMILIES, agrees, compared


@pytest.mark.parametrize("family", FAMILIES)
def test_no_plan_is_better(family: str) -> None:
    for seed in (1000, 1001):
        planned, best, bound, _ = compared(family, seed)
        assert agrees(planned, best, bound), f"{family} {seed}: {planned} planned, {best} is best"
