"""What `tangram_validate` knows without torch: messages between stages, scores, verbs and their refusals."""

import itertools
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tangram_validate.testbed.boundary import Side, transfers
from tangram_validate.testbed.passes import pass_cost
from tangram_validate.testbed.scoring import Point, kendall_tau, regret, score

from tests.places import ROOT

DEGREES = st.tuples(st.integers(1, 4), st.integers(1, 4))


@given(DEGREES, DEGREES, st.integers(4, 9), st.integers(1, 7))
def test_every_token_crosses_a_boundary_once(before, after, microbatch, seq):
    """Whatever the degrees on both sides; and each message lies within what its two ends own."""
    sides, first = [], 0
    for tp, dp in (before, after):
        sides.append(Side(tuple(range(first, first + tp * dp)), tp, dp))
        first += tp * dp
    found = transfers(*sides, microbatch, seq)
    tokens = sorted(itertools.chain.from_iterable(range(item.start, item.stop) for item in found))
    assert tokens == list(range(microbatch * seq))
    for item in found:
        for side, rank in zip(sides, (item.source, item.target), strict=True):
            start, stop = side.owned(rank, microbatch, seq)
            assert start <= item.start < item.stop <= stop


def test_kendall_tau_agrees_with_scipy():
    from scipy.stats import kendalltau

    predicted, measured = [3.0, 1.0, 2.0, 2.0, 5.0, 4.0], [2.0, 1.0, 3.0, 2.5, 5.0, 5.0]
    assert kendall_tau(predicted, measured) == pytest.approx(kendalltau(predicted, measured).statistic)


def test_pairs_that_runs_do_not_order_are_ties():
    """Two plans of equal length, measured apart by less than their runs scatter, cost no rank agreement."""
    predicted, measured = [1.0, 1.0, 2.0], [1.01, 1.0, 2.1]
    assert kendall_tau(predicted, measured) == pytest.approx((2 * 3) ** -0.5 * 2)
    assert kendall_tau(predicted, measured, [0.02, 0.0, 0.0]) == 1
    # Scatter does not excuse a clash beyond it, nor a tie of plans that differ.
    assert kendall_tau([1.0, 2.0, 3.0], [2.0, 1.0, 3.0], [0.1, 0.1, 0.1]) == pytest.approx(1 / 3)
    assert kendall_tau([1.0, 1.0, 3.0], [1.0, 2.0, 3.0], [0.1, 0.1, 0.1]) < 1


@given(st.floats(0.5, 5), st.floats(0, 1e-3), st.floats(1e-3, 0.1))
def test_two_passes_give_back_the_factor_and_the_launches(scale, launch, small):
    """Seconds made of `scale x (kernels + 40 launches)` are taken apart again."""
    kernels = (small, 4 * small)
    cost = pass_cost([scale * (seconds + 40 * launch) for seconds in kernels], kernels, 40)
    assert cost.time_scale == pytest.approx(scale, rel=1e-6)
    assert cost.launch_s == pytest.approx(launch, rel=1e-6, abs=1e-9)


def test_regret_is_what_choosing_by_prediction_costs():
    assert regret([1.0, 2.0], [3.0, 2.0]) == pytest.approx(0.5)
    assert regret([1.0, 2.0], [2.0, 3.0]) == 0


def test_plans_are_ranked_within_their_group_only():
    points = [
        Point("a", 1, 1, 1, 0.5),
        Point("a", 2, 2, 1, 0),
        Point("b", 10, 10, 1, 0.5),
        Point("b", 9, 9, 1, 0),
    ]
    found = score(points)
    assert (found.kendall_tau, found.top1_regret, found.median_ape, found.waiting_share) == (1, 0, 0, 0.5)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "torch" else found(name, package)
import typer
from tangram_sim.errors import TangramError
from tangram_validate.cli import testbed as commands
for verb in (commands.testbed, commands.device, commands.kernels):
    try:
        verb()
    except TangramError as error:
        print(error)
print("torch" in {name for name, module in sys.modules.items() if module is not None})
"""


def test_verbs_say_what_to_install_and_import_no_torch():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'validate'}"},
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 4 and all("pip install 'tangram-sim[validate]'" in line for line in lines[:3])
    assert lines[3] == "False"


def test_the_package_never_imports_what_runs_plans():
    for path in (ROOT / "tangram_sim").rglob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        starts = ("import tangram_validate", "from tangram_validate")
        assert not [line for line in lines if line.strip().startswith(starts)], path
