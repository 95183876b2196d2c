"""Golden plans: a refactoring reproduces the same decisions and predictions."""

import pytest

from tests.golden import CASES, found, stored

# The others take longer; `pytest tests/golden` runs all.
FAST = ("opt-350m-amp", "gshard-moe-2.4b-azure-c1")


@pytest.mark.parametrize(
    "case", [case if case in FAST else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_the_planner_reproduces_its_golden_plan(case: str) -> None:
    """Decisions to the letter, seconds to rounding; refresh knowingly with `python -m tests.golden`."""
    now, then = found(case), stored(case)
    assert now["pipelines"] == then["pipelines"]
    assert now["step_s"] == pytest.approx(then["step_s"], rel=1e-9)
    assert now["lower_bound_step_s"] == pytest.approx(then["lower_bound_step_s"], rel=1e-9)
