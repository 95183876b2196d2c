"""A time limit holds for every whole-cluster planner: the best plan so far and a note, or a reason."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from tangram_sim.cli.main import app
from tangram_sim.cli.wording import as_options
from tangram_sim.clusters import Cluster, Node, NodeGroup
from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.hwdb import load_model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.peers.amp import Amp
from tangram_sim.planners.peers.flashflex.planner import FlashFlex
from tangram_sim.planners.peers.hap.planner import Hap
from tangram_sim.planners.peers.metis import Metis
from tangram_sim.planners.peers.metis_published import MetisPublished
from tangram_sim.planners.peers.sailor import Sailor
from tangram_sim.planners.tangram.planner import Tangram
from tangram_sim.planners.uniform.best_uniform import BestUniform
from tangram_sim.planners.whole_cluster import CannotAnswerError, Price
from tangram_sim.studies import api
from tangram_sim.studies.comparison import CANNOT, OK, PlannerAnswer, answer, compare_planners
from tangram_sim.training.job import Job
from tests.contracts.test_planner_contract import HWDB, MIXED, installed, small_model  # noqa: F401  # a fixture

PEERS = (BestUniform, Metis, MetisPublished, Sailor, Amp, FlashFlex, Hap)
by_name = pytest.mark.parametrize("planner", PEERS, ids=lambda planner: planner.name)


class Looks(Deadline):
    """Over when it was asked so many times: the same on every machine."""

    def __init__(self, looks: int) -> None:
        super().__init__(1.0)
        self.looks = looks

    def over(self) -> bool:
        self.looks -= 1
        self.stopped = self.stopped or self.looks < 0
        return self.stopped


def asked(deadline: Deadline) -> Price:
    return Price(small_model(), MIXED, Job(8, 1024, "fp16"), HWDB, deadline)


def _stops(told: PlannerAnswer) -> list[str]:
    """What an answer says of having been stopped; other notes are about the plan."""
    return [note for note in told.result.document.notes if note.startswith("stopped")]


@pytest.mark.slow
@by_name
def test_a_planner_that_is_stopped_gives_its_best_so_far_and_says_so(planner):
    """Before its first plan is known there is none; when it is given enough time it answers as ever."""
    whole = answer(planner(), asked(Deadline()))
    assert whole.status == OK
    assert _stops(whole) == []
    stopped = 0
    for looks in (0, 2, 8, 32, 128, 512, 2048):
        told = answer(planner(), asked(Looks(looks)))
        if told.status == CANNOT:
            assert stopped == 0, "a plan was known sooner"
            assert "no plan found (time limit of 1 s); raise `time_limit_s=`" in told.reason
            continue
        assert told.status == OK, told.reason
        if not _stops(told):  # it was through before
            assert told.result.document.stages == whole.result.document.stages
            break
        assert _stops(told) == ["stopped by the time limit of 1 s: the best plan so far"]
        stopped += 1
    assert stopped or planner is Sailor  # whose first plan is its best


@by_name
def test_no_time_at_all_is_an_answer_with_the_limit_in_it(planner):
    price = asked(Deadline(0.0))
    with pytest.raises(CannotAnswerError, match=rf"{planner.name}: no plan found .* limit of 0 s"):
        planner().plan(price.model, price.cluster, price.job, price)


def test_tangram_takes_its_own_way_out_under_the_same_limit():
    told = answer(Tangram(), asked(Deadline(0.0)))
    assert told.status == OK
    stopped = "time limit 0: the best uniform layout, nothing was searched"
    assert told.result.document.notes[0] == stopped


def test_planners_that_are_compared_share_one_limit(monkeypatch):
    """Each has its part of what those before it left; while none has a plan the next is asked."""
    told: list[float] = []

    class Waits(Tangram):
        def plan(self, model, cluster, job, price):
            told.append(price.deadline.left_s())
            if len(told) == 3:
                whole.interrupted = True
            raise CannotAnswerError(f"nothing ({price.deadline.why()})")

    monkeypatch.setattr("tangram_sim.registry.planner", lambda name: type(name, (Waits,), {"name": name}))
    whole = Deadline(400.0)
    found = compare_planners(
        small_model(),
        MIXED,
        Job(8, 1024, "fp16"),
        ["a", "b", "c", "d"],
        hwdb=HWDB,
        deadline=whole,
        memory_margin=0.0,
    )
    assert told == pytest.approx([100.0, 400 / 3, 200.0, 0.0], rel=0.01)
    assert [item.reason for item in found] == [
        "nothing (share of the time limit, 100 of 400 s)",
        "nothing (share of the time limit, 133.33 of 400 s)",
        "nothing (stopped by hand)",
        "nothing (stopped by hand)",
    ]


def test_who_stops_a_comparison_by_hand_has_the_plan_of_tangram(monkeypatch):
    """Asked first where no limit is shared; the answers stand in the order asked for."""
    asked_of: list[str] = []

    class Stopped(Tangram):
        def plan(self, model, cluster, job, price):
            asked_of.append(self.name)
            whole.interrupted = True
            return super().plan(model, cluster, job, price)

    monkeypatch.setattr("tangram_sim.registry.planner", lambda name: type(name, (Stopped,), {"name": name}))
    whole = Deadline()
    given = small_model(), MIXED, Job(8, 1024, "fp16"), ["a", "tangram", "b"]
    found = compare_planners(*given, hwdb=HWDB, deadline=whole, memory_margin=0.0)
    assert asked_of == ["tangram"]
    assert [item.planner for item in found] == ["a", "tangram", "b"]
    assert [item.status for item in found] == [CANNOT, OK, CANNOT]


def test_commands_pass_the_limit_on_and_refuse_a_negative_one(installed):  # noqa: F811  # the fixture
    common = ["bert-large", "azure-c1-t4x4-v100x4", "--global-batch", "8", "--seq", "512"]
    compare = ["compare", *common, "--planners", "amp,tangram,sailor", "--time-limit"]
    told = json.loads(CliRunner().invoke(app, [*compare, "0", "--json"]).output)["planners"]
    assert told["amp"]["status"] == CANNOT
    assert "limit of 0 s" in told["amp"]["reason"]
    stopped = "time limit 0: the best uniform layout, nothing was searched"
    assert told["tangram"]["plan"]["notes"][0] == stopped
    assert told["sailor"]["reason"] == "not asked: time limit of 0 s"
    lines = CliRunner().invoke(app, [*compare, "0"]).output.splitlines()
    assert f"tangram: {stopped}" in lines
    nobody = CliRunner().invoke(app, ["compare", *common, "--planners", "amp", "--time-limit", "0", "--json"])
    assert isinstance(nobody.exception, InfeasibleError)
    alone = CliRunner().invoke(app, ["plan", *common, "--planner", "amp", "--time-limit", "0"])
    assert isinstance(alone.exception, CannotAnswerError)
    unhurried = ["plan", *common, "--planner", "amp", "--time-limit", "1000", "--json"]
    notes = json.loads(CliRunner().invoke(app, unhurried).output)["notes"]
    assert not any("time limit" in note for note in notes)
    for wrong in (["plan", *common, "--planner", "amp", "--time-limit", "-1"], [*compare, "-1"]):
        refused = CliRunner().invoke(app, wrong)
        assert isinstance(refused.exception, BadInputError)
        assert "--time-limit -1" in as_options(str(refused.exception))


def test_a_grace_without_an_answer_counts_what_is_computed(monkeypatch):
    """By the clock it is over; a busy machine has given this thread a tenth of a second of it."""
    clock, used = [100.0], [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr("time.thread_time", lambda: used[0])
    grace = Deadline(1.0).grace(0.5)
    assert not grace.over_without_answer()
    clock[0], used[0] = 110.0, 0.1
    assert grace.over() and not grace.over_without_answer()
    used[0] = 2.0
    assert grace.over_without_answer()


def test_without_time_the_best_island_alone_is_compared_with_all_gpus():
    """Nodes behind slow NICs, and a fast one: no group left out by hand makes such a plan faster."""
    slow = Node(HWDB.gpu("L40S"), 4, HWDB.link("PCIe4x16"), 1.25e9)
    fast = Node(HWDB.gpu("H100-SXM5-80GB"), 2, HWDB.link("NVLink4"), 1.25e10)
    where = Cluster("c", (NodeGroup("g0", 5, slow), NodeGroup("g1", 1, fast)))
    job, none = Job(96, 2048, "bf16"), SearchOptions(time_limit_s=0, memory_margin=0.0)
    asked = [none, replace(none, exclude=("g0",)), replace(none, exclude=("g1",))]
    # The first plan of a process loads compiled code, in the little time that such a plan has.
    _, every, *some = [
        api.plan(load_model("gpt3-1.3b"), where, job, wishes=item, hwdb=HWDB) for item in [none, *asked]
    ]
    assert every.step_s <= min(item.step_s for item in some) * (1 + 1e-9)
