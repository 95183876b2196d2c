"""Replays of availability: laws of the accounts, of policies, and published totals from given tables."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.elastic.__main__ import report
from benchmarks.elastic.figures import Data, Figure, read_figures
from benchmarks.elastic.node_losses import average
from tangram_sim.availability import Availability, NodeEvent
from tangram_sim.errors import BadInputError
from tangram_sim.reliability.spot.engine import Moment, Outcome, Policy, Reaction, replay
from tangram_sim.reliability.spot.lookahead import Hold, PerfectForecast, RecentForecast
from tangram_sim.reliability.spot.policies import Free, Replan, Restart
from tangram_sim.reliability.spot.policy_common import perfect_gap
from tangram_sim.reliability.spot.speeds import LayoutTable
from tangram_sim.reliability.spot.tracefile import read_trace
from tangram_sim.reliability.spot.transitions import FixedTransitions, free_transitions
from tangram_sim.studies.replaying import POLICIES, ReplayQuestion, outcomes
from tests.commands import tangram
from tests.places import SHARED

FOLDER = SHARED / "data" / "elastic"
TABLE = LayoutTable(
    {(d, p): d * (10.0 - 0.3 * d) * (p / (p + 1.5)) for d in range(1, 9) for p in range(2, 7)}, 64.0, 1.0
)


def shared(name: str) -> Path:
    if not (FOLDER / name).is_file():
        pytest.skip("the measured tables (../shared/data/elastic) are not here")
    return FOLDER / name


def history(steps: Sequence[tuple[float, int]], until_s: float) -> Availability:
    """A history from (time, number of nodes): the newest go first."""
    events, there, made = [], [], 0
    for time_s, count in steps:
        while len(there) > count:
            events.append(NodeEvent(time_s, "remove", there.pop()))
        while len(there) < count:
            made += 1
            there.append(f"n{made}")
            events.append(NodeEvent(time_s, "add", there[-1]))
    return Availability(tuple(events), until_s)


@st.composite
def histories(draw: Any) -> Availability:
    gaps = draw(st.lists(st.floats(5, 900), min_size=1, max_size=12))
    counts = draw(st.lists(st.integers(0, 40), min_size=len(gaps), max_size=len(gaps)))
    times, at = [], 0.0
    for gap in gaps:
        times.append(at)
        at += gap
    return history([(0.0, draw(st.integers(2, 40))), *zip(times[1:], counts[1:], strict=True)], at)


COSTS = st.builds(
    FixedTransitions,
    restart_s=st.floats(0, 200),
    checkpoint_s=st.floats(0, 50),
    reconfigure_s=st.floats(0, 20),
    detect_s=st.floats(0, 60),
    block_s=st.floats(0, 20),
    every_steps=st.integers(0, 20),
    keeps_all=st.booleans(),
)


def played(question: ReplayQuestion) -> dict[str, Outcome]:
    return outcomes(question, tuple(POLICIES))[0]


@settings(max_examples=60, deadline=None)
@given(history=histories(), costs=COSTS, join=st.sampled_from(["at-once", "next-loss", 100.0]))
def test_accounts_sum_to_wall_time_and_nothing_beats_the_bound(
    history: Availability, costs: FixedTransitions, join: str | float
) -> None:
    bound = replay(history, Free(TABLE, short=True), free_transitions())
    for outcome in played(ReplayQuestion(history, TABLE, costs, join)).values():
        assert sum(outcome.accounts.values()) == pytest.approx(history.until_s, rel=1e-9, abs=1e-6)
        assert min(outcome.accounts.values()) >= -1e-6
        assert -1e-6 <= outcome.samples <= bound.samples * (1 + 1e-9) + 1e-6


@pytest.mark.parametrize("name", ["wait", "restart", "shrink", "reroute", "templates", "replan", "hold"])
def test_without_events_and_checkpoints_samples_are_speed_times_time(name: str) -> None:
    quiet = history([(0.0, 24)], 5000.0)
    found = played(ReplayQuestion(quiet, TABLE, free_transitions()))[name]
    best = TABLE.best((("", 24),))
    assert best is not None
    assert found.samples == pytest.approx(best.samples_per_s * 5000.0)
    assert found.accounts["useful"] == pytest.approx(5000.0)


@settings(max_examples=40, deadline=None)
@given(history=histories(), cut=st.floats(0.1, 0.9))
def test_a_history_cut_in_two_adds_up_where_changes_are_free(history: Availability, cut: float) -> None:
    at = cut * history.until_s
    whole = replay(history, Free(TABLE), free_transitions())
    parts = [
        replay(part, Free(TABLE), free_transitions())
        for part in (history.window(0.0, at), history.window(at, history.until_s))
    ]
    assert sum(part.samples for part in parts) == pytest.approx(whole.samples, rel=1e-9, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(history=histories(), restart_s=st.floats(0, 200), migrate=st.floats(0, 1))
def test_free_changes_then_replanning_then_restarting(
    history: Availability, restart_s: float, migrate: float
) -> None:
    costs = FixedTransitions(restart_s=restart_s, migrate_s=migrate * restart_s)
    free = replay(history, Free(TABLE), free_transitions()).samples
    replanned = replay(history, Replan(TABLE, costs, perfect_gap), costs).samples
    restarted = replay(history, Restart(TABLE, costs), costs).samples
    assert free * (1 + 1e-9) + 1e-6 >= replanned
    assert replanned >= restarted * (1 - 1e-9) - 1e-6


@settings(max_examples=30, deadline=None)
@given(history=histories(), restart_s=st.floats(0, 100), more=st.floats(0, 100))
def test_longer_restarts_never_help(history: Availability, restart_s: float, more: float) -> None:
    short, long = (FixedTransitions(restart_s=seconds) for seconds in (restart_s, restart_s + more))
    assert (
        replay(history, Restart(TABLE, long), long).samples
        <= replay(history, Restart(TABLE, short), short).samples + 1e-6
    )


def test_restarts_that_cost_nothing_are_free_changes() -> None:
    some = history([(0.0, 20), (300.0, 11), (500.0, 26), (900.0, 3)], 1500.0)
    costs = FixedTransitions()
    assert replay(some, Restart(TABLE, costs), costs).samples == pytest.approx(
        replay(some, Free(TABLE), free_transitions()).samples
    )


def test_names_of_equal_nodes_change_nothing() -> None:
    some = history([(0.0, 20), (300.0, 11), (500.0, 26)], 1500.0)
    other = Availability(
        tuple(replace(event, node=f"other-{event.node}") for event in some.events), some.until_s
    )
    costs = FixedTransitions(restart_s=30, block_s=5, every_steps=7, keeps_all=False)
    for name, outcome in played(ReplayQuestion(some, TABLE, costs)).items():
        assert played(ReplayQuestion(other, TABLE, costs))[name].samples == outcome.samples


def test_work_since_the_checkpoint_is_lost_with_a_node() -> None:
    """10 steps of 4 s, then 2 s of checkpoint; a node goes 25 s into the second round."""
    table = LayoutTable({(1, 2): 16.0}, 64.0)
    costs = FixedTransitions(restart_s=30.0, block_s=2.0, every_steps=10, keeps_all=False)
    events = [NodeEvent(0.0, "add", "a"), NodeEvent(0.0, "add", "b"), NodeEvent(0.0, "add", "c")]
    lost = NodeEvent(30.0 + 42.0 + 25.0, "remove", "a")
    found = replay(Availability((*events, lost), 200.0), Restart(table, costs), costs)
    assert found.accounts["lost_work"] == pytest.approx(25.0)
    assert found.accounts["restart"] == pytest.approx(60.0)
    running = 200.0 - lost.time_s - 30.0
    assert found.samples == pytest.approx(16.0 * (40.0 + running - 2.0))
    assert found.accounts["checkpoint"] == pytest.approx(4.0)


def test_nodes_that_boot_or_wait_for_a_loss_come_later() -> None:
    some = history([(0.0, 12), (300.0, 24), (900.0, 20)], 1500.0)
    costs = FixedTransitions()
    at_once, later, booting = (
        replay(moment, Restart(TABLE, costs), costs, join=join).samples
        for moment, join in ((some, "at-once"), (some, "next-loss"), (some.delayed(60.0), "at-once"))
    )
    assert at_once > booting > later


def test_looking_ahead_perfectly_is_no_worse_than_restarting_and_one_interval_is_greedy() -> None:
    for seed in range(5):
        steps = [(300.0 * k, 8 + (7 * k * (seed + 3)) % 25) for k in range(20)]
        some = history(steps, 6000.0)
        costs = FixedTransitions(restart_s=60.0, migrate_s=20.0)
        held = replay(some, Hold(TABLE, costs, PerfectForecast(some)), costs).samples
        assert held >= replay(some, Restart(TABLE, costs), costs).samples
        greedy = Hold(TABLE, costs, RecentForecast(300.0), intervals=1)
        planned = Replan(TABLE, costs, lambda _: 300.0)
        assert replay(some, greedy, costs).samples == pytest.approx(
            replay(some, planned, costs).samples, rel=0.02
        )


class Watched:
    """A policy, and what it was asked and answered."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.seen = policy, list[tuple[Moment, Reaction]]()
        self.name, self.speeds, self.checkpoints = policy.name, policy.speeds, policy.checkpoints

    def react(self, moment: Moment) -> Reaction:
        self.seen.append((moment, self.policy.react(moment)))
        return self.seen[-1][1]


@settings(max_examples=15, deadline=None)
@given(history=histories(), costs=COSTS, join=st.sampled_from(["at-once", "next-loss", 100.0]))
def test_reactions_have_their_nodes_and_lose_work_only_with_a_node(
    history: Availability, costs: FixedTransitions, join: str | float
) -> None:
    """Nodes that wait to join are not the job's, also where nothing follows; who waits has no stalls."""
    question = ReplayQuestion(history, TABLE, costs, join)
    for chosen in (make(question) for make, lacks in POLICIES.values() if not lacks(question)):
        watched = Watched(chosen)
        replay(history, watched, costs, join=join)
        assert watched.seen
        for moment, reaction in watched.seen:
            if reaction.option is None:
                assert reaction.stalls == ()
            elif not reaction.slowed:
                assert reaction.option.fits(dict(moment.fleet))
            if costs.keeps_all or not moment.removed:
                assert reaction.loses == "nothing"
        recent = RecentForecast(60.0)
        for moment, _ in watched.seen:
            now, *later = recent.ahead(moment, 8)
            assert (now.nodes, now.lost, now.came) == (
                sum(count for _, count in moment.fleet),
                moment.removed,
                moment.added,
            )
            for before, after in pairwise((now, *later)):
                assert after.nodes == before.nodes - after.lost + after.came
                assert min(after.lost, after.came) == 0


def test_published_totals_from_given_tables() -> None:
    path = shared("elastic_figures.csv")
    groups = {"spot replay, fastest layout", "failure frequency", "spot replay", "batch split"}
    figures: list[Figure] = [figure for figure in read_figures(path) if figure.group in groups]
    found = report(figures, Data((FOLDER,)))
    assert not found["refused"]
    assert len(found["rows"]) >= 104
    outside = [row["id"] for row in found["rows"] if row["within"] is False]
    assert not outside


def test_the_order_of_policies_is_the_published_one() -> None:
    """Templates lead; restarts lead where their layouts are faster and losses are rare."""
    data = Data((FOLDER,))
    shared("traces/node_events_oobleck.csv")
    for model in ("BERT-large", "GPT-2", "GPT-3-medium", "GPT-3-6.7B"):
        for trace in ("every_6h", "every_1h", "every_30m", "every_10m"):
            templates, restart = (average(model, trace, name, data)[0] for name in ("templates", "restart"))
            leads = model in ("GPT-2", "GPT-3-medium") and trace == "every_6h"
            assert (restart > templates) == leads
            if model in ("BERT-large", "GPT-2"):
                assert restart > average(model, trace, "redundancy", data)[0]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


SPEEDS = "pipelines,stages,samples_per_s\n1,2,10\n2,2,19\n1,4,17\n"
TRACE = "time_s,event,node\n0,add,a\n0,add,b\n0,add,c\n0,add,d\n600,remove,a\n900,add,e\n"


def test_the_command_answers_with_the_agreed_keys(tmp_path: Path) -> None:
    speeds, trace = write(tmp_path / "speeds.csv", SPEEDS), write(tmp_path / "trace.csv", TRACE)
    finished = tangram(
        "replay-trace", "any", trace, "--speeds", speeds, "--restart-s", 30, "--price", 2, "--json"
    )
    found = finished.json
    assert found["duration_s"] == 960.0
    assert found["upper_bound"] == pytest.approx(19 * 660 + 10 * 300 - 19 * 60 + 19 * 60 - 0)
    assert found["best"] in found["policies"]
    for policy in found["policies"].values():
        assert sum(policy["accounts"].values()) == pytest.approx(960.0)
        assert policy["usd"] == pytest.approx(2 * (4 * 600 + 3 * 300 + 4 * 60) / 3600)
        assert {"samples", "useful_share", "plans", "interval"} <= set(policy)
    again = tangram(
        "replay-trace", "any", trace, "--speeds", speeds, "--restart-s", 30, "--price", 2, "--json"
    )
    assert again.out == finished.out


def test_a_policy_that_trains_nothing_has_no_price_of_a_million(tmp_path: Path) -> None:
    speeds, trace = write(tmp_path / "speeds.csv", SPEEDS), write(tmp_path / "trace.csv", TRACE)
    found = tangram("replay-trace", "any", trace, "--speeds", speeds, "--restart-s", 1e6, "--price", 2)
    assert found.code == 0
    assert "$/M samples" in found.out


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        ("time_s,event,node\n0,add,a\n5,remove,b\n", "line 3: remove of b at 5 s, which is not there"),
        ("time_s,event,node\n5,add,a\n0,add,b\n", "line 3: time 0 s comes after 5 s"),
        ("time_s,event,node\n0,add,a\n0,add,a\n", "line 3: add of a at 0 s is given twice"),
        ("time_s,event,node\n0,add,a\n5,add,a\n", "line 3: a is added at 5 s, and is there already"),
        ("time_s,event,node\n0,vanish,a\n", "unknown event 'vanish'"),
        ("time_s,event,node\n-1,add,a\n", "time_s '-1'"),
        ("time_s,speed\n0,1\n", "unknown column speed"),
        ("time_s,count\n0,0\n", "every count is 0"),
        ("time_s,event,node\n0,add,a\n", "nothing runs on any fleet"),
    ],
)
def test_impossible_histories_are_named(trace: str, said: str, tmp_path: Path) -> None:
    speeds = write(tmp_path / "speeds.csv", SPEEDS)
    finished = tangram("replay-trace", "any", write(tmp_path / "trace.csv", trace), "--speeds", speeds)
    assert finished.code == 2
    assert said in finished.err


def test_counts_become_events(tmp_path: Path) -> None:
    path = write(tmp_path / "counts.csv", "time_s,count\n0,4\n60,6\n60,5\n120,2\n")
    found = read_trace(path)
    assert found.counts() == [(0.0, 4), (60.0, 5), (120.0, 2)]
    assert found.until_s == 180.0
    assert found.losses == 3


def test_the_figures_table_has_the_rows_that_are_tested() -> None:
    with shared("elastic_figures.csv").open() as file:
        assert sum(row["group"] == "failure frequency" for row in csv.DictReader(file)) >= 40


@pytest.mark.parametrize("column", ["global_batch", "microbatch"])
def test_a_table_of_speeds_with_an_empty_batch_is_refused(tmp_path: Path, column: str) -> None:
    from tangram_sim.reliability.spot.speeds import read_speeds

    (tmp_path / "speeds.csv").write_text(f"{column},pipelines,stages,samples_per_s\n0,1,2,9.1\n")
    with pytest.raises(BadInputError, match=f"{column} '0': more than 0 is wanted"):
        read_speeds(tmp_path / "speeds.csv", "any")
