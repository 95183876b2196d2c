"""Ranks killed for real: what each policy loses, and what its prediction is made of."""

import pytest
from tangram_validate.testbed.failures import FailingRun, FailureConstants, predict, run_failures


def test_predictions_are_the_rules_of_the_replay() -> None:
    run = FailingRun(ranks=3, steps=40, every=8, killed_at=29)
    constants = FailureConstants(0.5, 0.4, 0.1, 20.0, 0.02)
    restart, shrink = (predict(name, run, constants) for name in ("restart", "shrink"))
    assert restart["lost_work"] == pytest.approx(5.5 * 0.5)  # back to step 24, and half of the running one
    assert restart["restart"] == pytest.approx(20.0)
    assert restart["useful"] == pytest.approx(40 * 0.5)
    assert shrink["lost_work"] == pytest.approx(0.25)
    assert shrink["restart"] == pytest.approx(0.02)
    assert shrink["useful"] == pytest.approx(29 * 0.5 + 11 * 0.4)
    for found in (restart, shrink):
        assert found["detection"] == pytest.approx(0.25)
        parts = sum(seconds for name, seconds in found.items() if name != "total")
        assert parts == pytest.approx(found["total"])


@pytest.mark.slow
def test_a_killed_rank_costs_a_restart_or_only_its_step() -> None:
    run = FailingRun(ranks=2, steps=12, every=4, killed_at=6, width=64)
    _, scored = run_failures(run, say=lambda _: None)
    measured = {
        (scored_account.policy, scored_account.account): scored_account.measured_s
        for scored_account in scored
    }
    for policy in ("restart", "shrink"):
        parts = sum(
            seconds for (name, account), seconds in measured.items() if name == policy and account != "total"
        )
        assert parts == pytest.approx(measured[policy, "total"], abs=1.0)
    assert measured["restart", "restart"] > measured["shrink", "restart"]
    assert measured["restart", "lost_work"] > measured["shrink", "lost_work"]
