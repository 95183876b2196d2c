"""Slow nodes in a replay, and batches that go with the fleet."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.availability import Availability, NodeEvent
from tangram_sim.reliability.spot.engine import replay
from tangram_sim.reliability.spot.policies import Free, Restart
from tangram_sim.reliability.spot.speeds import LayoutTable
from tangram_sim.reliability.spot.transitions import FixedTransitions, free_transitions
from tangram_sim.studies.replaying import POLICIES, ReplayQuestion, outcomes
from tests.commands import tangram

TABLE = LayoutTable({(1, 2): 10.0, (2, 2): 20.0}, 40.0, 1.0)
FOUR = tuple(NodeEvent(0.0, "add", name) for name in "abcd")


def test_a_slow_node_sets_the_pace_of_what_cannot_do_without_it() -> None:
    """Four nodes run at 20; one of them 1.25 times slower: 16; 4 times: the other pipeline alone, 10."""
    costs = FixedTransitions()
    for factor, rate in ((1.25, 16.0), (4.0, 10.0)):
        events = (*FOUR, NodeEvent(100.0, "slow", "b", "", factor), NodeEvent(300.0, "recover", "b"))
        found = replay(Availability(events, 400.0), Restart(TABLE, costs), costs)
        assert found.samples == pytest.approx(200 * 20.0 + 200 * rate)
        assert sum(found.accounts.values()) == pytest.approx(400.0)
        lost = found.accounts["slow"] + found.accounts["idle_nodes"] + found.accounts["degraded"]
        assert lost == pytest.approx(200 * (1 - rate / 20.0))
        assert (found.accounts["slow"] > 0) == (factor == 1.25)


def test_the_time_of_steps_and_checkpoints_goes_on_at_the_new_pace() -> None:
    """5 steps of 2 s, 1 s of checkpoint; half speed from 14 s (a second and a half into the second round)."""
    costs = FixedTransitions(block_s=1.0, every_steps=5, keeps_all=False)
    table = LayoutTable({(2, 2): 20.0}, 40.0, 1.0)
    slow = NodeEvent(12.5, "slow", "a", "", 2.0)
    found = replay(Availability((*FOUR, slow), 33.5), Restart(table, costs), costs)
    # 10 s, checkpoint, 1.5 s; then 8.5 s of steps in 17, a checkpoint, and 3 s at half speed.
    assert found.accounts["checkpoint"] == pytest.approx(2.0)
    assert found.samples == pytest.approx(20.0 * (10 + 1.5 + 8.5 + 1.5))
    lost = NodeEvent(33.5, "remove", "a")
    after = replay(Availability((*FOUR, slow, lost), 40.0), Restart(table, costs), costs)
    assert after.samples == pytest.approx(20.0 * 20)
    assert after.accounts["lost_work"] == pytest.approx(3.0)


@pytest.mark.parametrize("forecast", ["recent", "perfect"])
def test_looking_ahead_leaves_a_slow_node_out_and_takes_it_back(forecast: str) -> None:
    """20/s for 100 s, the other pipeline's 10/s for 200 s, 20/s again: 20/4 with the slow node."""
    slow = NodeEvent(100.0, "slow", "b", "", 4.0), NodeEvent(300.0, "recover", "b")
    question = ReplayQuestion(
        Availability((*FOUR, *slow), 400.0), TABLE, FixedTransitions(), forecast=forecast
    )
    found, _ = outcomes(question, ["hold", "restart"])
    assert found["hold"].samples == pytest.approx(200 * 20.0 + 200 * 10.0)
    assert found["hold"].samples == pytest.approx(found["restart"].samples)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_accounts_sum_and_the_bound_holds_with_slow_nodes(data: st.DataObject) -> None:
    events, at, there = list(FOUR), 0.0, set("abcd")
    for _ in range(data.draw(st.integers(1, 8))):
        at += data.draw(st.floats(1, 200))
        node = data.draw(st.sampled_from("abcd"))
        if node not in there:
            there.add(node)
            events.append(NodeEvent(at, "add", node))
            continue
        what = data.draw(st.sampled_from(["slow", "recover", "remove"]))
        events.append(NodeEvent(at, what, node, "", data.draw(st.floats(0.5, 4)) if what == "slow" else 0.0))
        there -= {node} if what == "remove" else set()
    history = Availability(tuple(events), at + 50.0)
    costs = FixedTransitions(
        restart_s=data.draw(st.floats(0, 60)),
        block_s=data.draw(st.floats(0, 5)),
        every_steps=data.draw(st.integers(0, 6)),
        keeps_all=data.draw(st.booleans()),
    )
    bound = replay(history, Free(TABLE, short=True), free_transitions()).samples
    for outcome in outcomes(ReplayQuestion(history, TABLE, costs), tuple(POLICIES))[0].values():
        assert sum(outcome.accounts.values()) == pytest.approx(history.until_s)
        assert min(outcome.accounts.values()) >= -1e-6
        assert outcome.samples <= bound * (1 + 1e-9) + 1e-6


def test_a_batch_per_pipeline_keeps_slots_and_the_whole_fleets_speed() -> None:
    """Two pipelines of 20 microbatches: one alone, with 40 before, now runs 20: its bubble grows."""
    scaled = TABLE.with_batch_per_pipeline(20.0)
    assert scaled.rates[2, 2] == pytest.approx(20.0)
    slot = 40.0 / 10.0 / (40 + 1)
    assert scaled.rates[1, 2] == pytest.approx(20 / (slot * 21))
    item = scaled.best((("", 2),))
    assert item is not None
    assert item.samples_per_step == 20.0


def test_the_command_scales_the_batch_and_refuses_what_does_not_say_how(tmp_path: Path) -> None:
    layouts, nodes, trace = (tmp_path / name for name in ("layouts.csv", "nodes.csv", "trace.csv"))
    layouts.write_text("global_batch,pipelines,stages,samples_per_s\n40,1,2,10\n40,2,2,20\n")
    nodes.write_text("nodes,samples_per_s\n2,10\n4,20\n")
    trace.write_text("time_s,event,node\n0,add,a\n0,add,b\n0,add,c\n0,add,d\n600,remove,a\n1200,add,e\n")
    kept, scaled = (
        tangram("replay-trace", "m", trace, "--speeds", layouts, "--policy", "shrink", "--json", *more).json
        for more in ((), ("--batch", "scale"))
    )
    samples = [found["policies"]["shrink"]["samples"] for found in (kept, scaled)]
    assert samples[1] < samples[0]
    for more, said in (
        (("--speeds", nodes, "--batch", "scale"), "this table has them by nodes"),
        (("--speeds", layouts, "--batch", "grow"), "unknown batch 'grow'"),
    ):
        found = tangram("replay-trace", "m", trace, *more)
        assert found.code == 2
        assert said in found.err
