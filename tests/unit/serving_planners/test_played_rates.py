"""What is played of a rate: requests again keep it, and what a replica carries is told without the end."""

import numpy as np
import pytest

from tangram_sim.serving.batching import BatchingRules
from tangram_sim.serving.fleet import FleetReplica, play
from tangram_sim.serving.plain_tables import linear_table
from tangram_sim.serving.router import RoundRobin
from tangram_sim.serving.workload import Workload, plain
from tangram_sim.studies.serving_plan_replay import carried_share


def requests(count: int, rate: float) -> Workload:
    tokens = np.full(count, 10, dtype=np.int64)
    return plain(np.arange(count) / rate, tokens, tokens)


@pytest.mark.parametrize(("rate", "share"), [(0.05, 1.0), (0.09, 1.0), (0.2, 0.5), (0.4, 0.25)])
def test_one_seat_carries_what_it_finishes_in_a_second(rate: float, share: float) -> None:
    """A seat, ten iterations of a second for each request: 0.1 requests a second, however long the run."""
    rules = BatchingRules(100, 1, 16, 100, True, "whole_prompt", "recompute", False)
    replica = FleetReplica("one", rules, linear_table(1, step_s=1.0))
    for count in (40, 400):
        run = play([replica], requests(count, rate), RoundRobin())
        duration_s = float(np.nanmax(run.ledger.finish_s))
        assert carried_share(run, duration_s) == pytest.approx(share, rel=0.03)


def test_requests_again_come_at_the_same_rate_and_are_the_same() -> None:
    once = requests(7, 2.0)
    thrice = once.repeated(3)
    assert len(thrice) == 21
    assert thrice.rate_rps == pytest.approx(once.rate_rps)
    assert np.allclose(np.diff(thrice.arrival_s), 0.5)
    assert (thrice.input_tokens[7:14] == once.input_tokens).all()
