"""Studies of purchases under a time limit: the best so far is shown, with what was not looked at."""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.purchasing import cases
from tangram_sim.purchasing.catalogue import Limits, load_catalogue
from tangram_sim.purchasing.fleets import Fleet, parse_purchases
from tangram_sim.purchasing.known import on_larger
from tangram_sim.purchasing.pricefile import load_prices
from tangram_sim.purchasing.purchase import purchase
from tangram_sim.purchasing.search import ModelToTrain
from tangram_sim.purchasing.whatif import what_if
from tangram_sim.studies.planfile import plan_from_document
from tangram_sim.studies.sweep import STOPPED, Cache, Sweep
from tangram_sim.training.job import Job
from tangram_sim.training.step.side_by_side import price_plan
from tests.commands import files, tangram
from tests.remembered import searched_anew

HWDB = Hwdb.load()
JOB = Job(global_batch=8, seq=1024)
WHOLE = SearchOptions(sub_islands=False)
PRICES = """\
nodes:
  V100x4: {rent_usd_per_hour: 7, date: 2026-11-01, source: quote 2}
  T4x4: {rent_usd_per_hour: 1.5, date: 2026-11-01, source: quote 1}
economics: {pue: 1.3, usd_per_kwh: 0.1, date: 2026-11-01, source: finance}
"""
NODES = {
    "V100x4": "{name: V100x4, gpu: V100-SXM2-32GB, gpus: 4, intra_link: NVLink2, nic_gbps: 100}",
    "T4x4": "{name: T4x4, gpu: T4, gpus: 4, intra_link: PCIe3x16, nic_gbps: 25}",
}


def stopping(monkeypatch, room: str, most: int) -> Deadline:
    """Over while the case after `most` of them is planned: the same on every machine."""
    deadline, begun = Deadline(), []

    def work(case, share):
        deadline.interrupted = len(begun) == most
        begun.append(case)
        return cases.simulate_case(case, share)

    monkeypatch.setattr(f"tangram_sim.purchasing.{room}.simulate_case", work)
    return deadline


@pytest.fixture(autouse=True)
def limits_meet_searches() -> Iterator[None]:
    """Nothing that is cut short here was found before."""
    with searched_anew():
        yield


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Cache:
    """Answers to questions without a limit."""
    return Cache(tmp_path_factory.mktemp("kept"))


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with a model, a fleet, node files, a catalogue and prices."""
    files(tmp_path)
    (tmp_path / "prices.yaml").write_text(PRICES)
    for name, text in NODES.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    offers = [{"node": f"{name}.yaml", "most": 2} for name in NODES]
    (tmp_path / "catalogue.yaml").write_text(yaml.safe_dump({"offers": offers}))
    return tmp_path


def rows_of(shop: Path, deadline: Deadline | None = None, cache: Cache | None = None):
    added = [parse_purchases(f"{shop}/{name}.yaml:1", HWDB) for name in NODES]
    return what_if(
        load_model(str(shop / "tiny.yaml")),
        Fleet.of(load_cluster(str(shop / "lab.yaml"), HWDB)),
        added,
        job=JOB,
        wishes=WHOLE,
        hwdb=HWDB,
        sweep=Sweep(cache, jobs=1),
        deadline=deadline,
    )


def front_under(shop: Path, deadline: Deadline | None = None, cache: Cache | None = None, tell=None, job=JOB):
    return purchase(
        [ModelToTrain(load_model(str(shop / "tiny.yaml")), job)],
        Fleet.of(load_cluster(str(shop / "lab.yaml"), HWDB)),
        load_catalogue(shop / "catalogue.yaml", HWDB),
        Limits(nodes=3),
        load_prices(shop / "prices.yaml", HWDB),
        ordered=date(2026, 11, 1),
        wishes=WHOLE,
        hwdb=HWDB,
        sweep=Sweep(cache, jobs=1),
        deadline=deadline,
        tell=tell,
    )


def test_a_row_that_time_did_not_suffice_for_says_so(shop, kept, monkeypatch):
    """The first two are planned as ever; the third has the fleet's plan, and no other is claimed for it."""
    whole, some = rows_of(shop, cache=kept), rows_of(shop, stopping(monkeypatch, "candidate_plans", 2))
    assert not any(row.cut_short for row in whole.rows)
    assert [row.cut_short for row in some.rows] == [False, False, True]
    for planned, again in zip(whole.rows[:2], some.rows[:2], strict=True):
        assert planned.document.step_s == again.document.step_s
    fleet, last = some.rows[0], some.rows[2]
    assert "stopped by hand: the best plans so far of `+ 1 x T4x4`" in some.notes[0]
    assert whole.rows[2].document.step_s <= last.document.step_s * (1 + 1e-9)
    assert last.document.step_s <= fleet.document.step_s * (1 + 1e-9)


def test_a_plan_of_a_smaller_fleet_takes_as_long_on_a_larger_one(shop, kept):
    """Whatever stands between its groups: ranks and islands are renamed, nothing else."""
    found = rows_of(shop, cache=kept).rows[0].document
    small = plan_from_document(found, HWDB, "x")
    node = load_cluster("azure-c1", HWDB).groups[0]
    first, second = small.cluster.groups
    named = (first, replace(node, name="g1"), replace(second, name="g2", count=second.count + 1))
    moved = on_larger(small, replace(small.cluster, groups=named), {0: 0, 1: 2})
    assert moved.gpus_used == small.gpus_used
    assert {moved.cluster.gpu_of(node).name for node in _nodes(moved)} == {
        small.cluster.gpu_of(node).name for node in _nodes(small)
    }
    assert price_plan(moved, HWDB).step_s() == pytest.approx(price_plan(small, HWDB).step_s(), rel=1e-12)


def _nodes(plan) -> set[int]:
    owner = Placement(plan.cluster, HWDB).node_of
    return {owner[rank] for rank in plan.ranks}


def test_no_time_at_all_is_an_answer(shop):
    """The fleet's own plan, the best uniform layout: it runs on every candidate, too."""
    found = tangram(
        *("what-if", shop / "tiny.yaml", shop / "lab.yaml", "--add", f"{shop}/T4x4.yaml:1"),
        *("--global-batch", 8, "--seq", 1024, "--time-limit", 0, "--no-cache", "--jobs", 1),
    )
    assert found.code == 0, found.err
    assert "time limit of 0 s: `+ 1 x T4x4` shows a plan of fewer nodes" in found.out


def test_the_front_so_far_is_one_of_what_was_looked_at(shop, kept, monkeypatch):
    """Its points are among those simulated; what is left is counted, and may reach the front."""
    whole = front_under(shop, cache=kept)
    some = front_under(shop, stopping(monkeypatch, "search", 1))
    front = some.front
    assert len(front.simulated) < len(whole.front.simulated)
    assert front.waiting > 0
    assert len(front.simulated) + front.left_out + front.waiting == front.mixes == whole.front.mixes
    assert {point.simulated.mix for point in some.points} <= {item.mix for item in front.simulated}
    assert f"{front.waiting} were not looked at" in some.notes[0]
    assert whole.front.waiting == 0


def test_a_mix_whose_search_time_ended_bounds_no_smaller_one(shop, kept, monkeypatch):
    """Behind the fleet comes the largest; that no plan of it was found in time says nothing of the others."""
    begun = []

    def work(case, share):
        begun.append(case)
        if len(begun) == 2:
            return {"infeasible": "no plan was found in time", STOPPED: True}
        return cases.simulate_case(case, share)

    whole = front_under(shop, cache=kept)
    monkeypatch.setattr("tangram_sim.purchasing.search.simulate_case", work)
    found = front_under(shop)
    front = found.front
    assert "1 of" in found.notes[0] and "cut short" in found.notes[0]
    assert not any("goes on" in note for note in found.notes)
    ended = [item.mix for item in front.simulated if item.cut_short]
    assert len(ended) == 1 and len(begun) > 2
    assert [point.mix for point in front.points] == [
        point.simulated.mix for point in whole.points if point.simulated.mix not in ended
    ]


def test_fronts_are_told_as_they_come(shop, kept):
    """Each has a point that the one before had not, and the last one is the answer."""
    told = []
    whole = front_under(shop, cache=kept, tell=told.append, job=Job(global_batch=256, seq=2048))
    mixes = [tuple(point.simulated.mix for point in item.points) for item in told]
    assert len(mixes) > 1
    assert all(before != after for before, after in pairwise(mixes))
    assert mixes[-1] == tuple(point.simulated.mix for point in whole.points)
    assert "the search goes on" in told[0].notes[0]


def test_the_command_keeps_the_front_so_far(shop, kept):
    """front.json is there with what was not looked at, and the table says so, too."""
    found = tangram(
        *("purchase", shop / "tiny.yaml", shop / "lab.yaml", "--catalogue", shop / "catalogue.yaml"),
        *("--prices", shop / "prices.yaml", "--global-batch", 8, "--seq", 1024, "--max-nodes", 3),
        *("--cache", kept.folder, "--jobs", 1, "--time-limit", 1000, "-o", shop / "bought"),
    )
    assert found.code == 0, found.err
    front = json.loads((shop / "bought" / "front.json").read_text())
    assert front["not_looked_at"] == 0
    assert "not looked at" not in found.out


def interrupting(case, deadline):
    """The answer of a case after which somebody presses Ctrl-C."""
    answer = cases.simulate_case(case, deadline)
    os.kill(os.getpid(), signal.SIGINT)
    return answer


def test_ctrl_c_shows_what_there_is(shop, monkeypatch):
    """One press: the rows so far, and 0; two would end the program."""
    monkeypatch.setattr("tangram_sim.purchasing.candidate_plans.simulate_case", interrupting)
    found = tangram(
        *("what-if", shop / "tiny.yaml", shop / "lab.yaml", "--add", f"{shop}/T4x4.yaml:1"),
        *("--global-batch", 8, "--seq", 1024, "--no-cache", "--jobs", 1),
    )
    assert found.code == 0, found.err
    assert "stopped by hand" in found.out


def test_a_catalogue_may_stand_on_one_line(tmp_path: Path) -> None:
    """As in a file; a kind named twice is added up; what is neither a file nor nodes says what to write."""
    offers = "offers: [{node: V100-SXM2-32GBx4, most: 3}, {node: T4x4, most: 1}]"
    (tmp_path / "offers.yaml").write_text(offers, encoding="utf-8")
    line = load_catalogue(Path("V100-SXM2-32GBx4:2+T4x4:1+V100-SXM2-32GBx4:1"), HWDB)
    assert line == load_catalogue(tmp_path / "offers.yaml", HWDB)
    with pytest.raises(BadInputError, match="two kinds of NICs"):
        load_catalogue(Path("T4x4:1@25+T4x4:1@100"), HWDB)
    with pytest.raises(BadInputError, match=r"`catalogue=offers`: offers given; write"):
        load_catalogue(Path("offers"), HWDB)
