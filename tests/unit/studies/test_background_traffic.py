"""Background traffic of other jobs on links: constant, by hour, from a trace; played and planned with."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tangram_sim.clusters import Cluster
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.health import Slowdown
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.models import Model
from tangram_sim.placement.slowing import with_slowdowns
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.studies import api
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.results import Result
from tangram_sim.studies.slow_documents import SlowDocument
from tangram_sim.studies.slow_files import Slow, read_slow
from tangram_sim.studies.slow_plans import plan_slow, replayed
from tangram_sim.studies.slowness import play_slow, slow_findings
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan
from tests.commands import tangram
from tests.unit.studies.small_model import JOB, SMALL

LAB = """\
name: lab
nodes:
  - {{count: 2, gpu: T4, gpus: 2, intra_link: PCIe3x16, nic_gbps: {0}}}
  - {{count: 2, gpu: V100-PCIe-16GB, gpus: 2, intra_link: PCIe3x16, nic_gbps: {1}}}
network: {{between: [{{groups: [0, 1], gbps: {2}, latency_us: 30}}]}}
"""
NIGHT, DAY = [0.1] * 8, [0.6] * 16


@pytest.fixture(scope="module")
def database() -> Hwdb:
    return Hwdb.load()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("traffic") / "small.yaml"
    path.write_text(SMALL)
    return load_model(str(path))


def lab(folder: Path, database: Hwdb, rates: Sequence[float] = (25, 25, 20)) -> Cluster:
    (folder / "lab.yaml").write_text(LAB.format(*rates))
    return load_cluster(str(folder / "lab.yaml"), database)


def spread(small: Model, cluster: Cluster, database: Hwdb) -> Plan:
    """Two stages over both kinds of GPUs: gradients cross nodes, activations cross the groups' link."""
    return api.estimate(small, cluster, JOB, Uniform(pp=2, dp=4), hwdb=database).forecast.plan


@pytest.fixture(scope="module")
def made(small: Model, database: Hwdb, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return spread(small, lab(tmp_path_factory.mktemp("lab"), database), database)


def given(folder: Path, cluster: Cluster, entry: str) -> Slow:
    (folder / "slow.yaml").write_text(f"slow: [{entry}]")
    return read_slow(str(folder / "slow.yaml"), cluster)


def played(made: Plan, slow: Slow, database: Hwdb) -> tuple[PlanDocument, SlowDocument]:
    document = replayed(made, slow, database).document
    assert document.slow is not None
    return document, document.slow


@pytest.mark.parametrize("engine", ["fast", "reference"])
@pytest.mark.parametrize(
    ("where", "rates"),
    [("network", (17.5, 17.5, 14)), ("T4", (17.5, 25, 20)), ("g1", (25, 17.5, 20)), ("g0-g1", (25, 25, 14))],
)
def test_constant_traffic_leaves_a_network_of_what_others_do_not_use(
    made: Plan,
    small: Model,
    database: Hwdb,
    tmp_path: Path,
    where: str,
    rates: tuple[float, float, float],
    engine: str,
) -> None:
    slow = given(tmp_path, made.cluster, f"{{where: {where}, used: 0.3}}")
    slower = spread(small, lab(tmp_path, database, rates), database)
    step_s = replayed(made, slow, database, engine).document.step_s
    assert step_s == pytest.approx(play_slow(slower, (), database, engine).step_s, rel=1e-9)
    assert step_s > 1.0001 * play_slow(made, (), database, engine).step_s


def test_traffic_of_the_whole_network_and_of_one_link_multiply(made: Plan) -> None:
    slowdowns = [
        Slowdown(where, factor, "network")
        for where, factor in (("network", 2.0), ("g1-g0", 3.0), ("n1", 5.0))
    ]
    cluster = with_slowdowns(made.cluster, slowdowns)
    assert cluster.group_limit(0, 1)[0] == pytest.approx(made.cluster.group_limit(0, 1)[0] / 6)
    assert [cluster.nic_of(node) for node in range(4)] == pytest.approx([25e9 / 8 / x for x in (2, 10, 2, 2)])


@pytest.mark.parametrize("starts_at", ["00:00", "09:30"])
def test_equal_hours_are_constant_traffic(made: Plan, database: Hwdb, tmp_path: Path, starts_at: str) -> None:
    constant, section = played(made, given(tmp_path, made.cluster, "{where: network, used: 0.4}"), database)
    entry = f'{{where: network, by_hour: {[0.4] * 24}, starts_at: "{starts_at}"}}'
    hours, over_day = played(made, given(tmp_path, made.cluster, entry), database)
    assert hours.step_s == pytest.approx(constant.step_s, rel=1e-9)
    assert over_day.traffic_step_s == pytest.approx(constant.step_s, rel=1e-9)
    assert (section.traffic_step_s, section.phases, len(over_day.phases)) == (0.0, [], 1)


def test_hours_begin_where_the_run_begins_and_their_mean_is_the_plan(
    made: Plan, database: Hwdb, tmp_path: Path
) -> None:
    """From 06:30 on: 1.5 quiet hours, 16 busy ones, 6.5 quiet ones; each at the step of its share."""
    entry = f'{{where: network, by_hour: {NIGHT + DAY}, starts_at: "06:30"}}'
    document, section = played(made, given(tmp_path, made.cluster, entry), database)
    quiet_s, busy_s = (
        played(made, given(tmp_path, made.cluster, f"{{where: network, used: {share}}}"), database)[0].step_s
        for share in (0.1, 0.6)
    )
    assert [phase.step_s for phase in section.phases] == pytest.approx([quiet_s, busy_s, quiet_s], rel=1e-9)
    begun = [phase.first_step for phase in section.phases]
    hours = [1.5, 16, 6.5]
    counts = [3600 * hour / step_s for hour, step_s in zip(hours, (quiet_s, busy_s, quiet_s), strict=True)]
    assert begun == pytest.approx([0, counts[0], counts[0] + counts[1]], abs=2)
    assert section.traffic_step_s == pytest.approx(86400 / sum(counts), rel=1e-5)
    assert section.slowdowns[0].factor == pytest.approx(1 / (1 - (8 * 0.1 + 16 * 0.6) / 24))
    assert quiet_s < document.step_s < busy_s
    told = [finding.text for finding in document.findings if "background traffic" in finding.text]
    assert any("43.3 % of the bandwidth of network, its mean over the day" in text for text in told)
    assert any("played over the day" in text for text in told)


def test_a_trace_is_the_same_windows_of_steps(made: Plan, database: Hwdb, tmp_path: Path) -> None:
    """Windows that end half a step early or late end with the same step."""
    first, then = (
        play_slow(made, (Slowdown("g0-g1", factor, "network"),), database).step_s for factor in (1.25, 4.0)
    )
    begins = (0.0, 9.5 * first, 10 * first + 4.5 * then)
    rows = [f"{since!r},{share}" for since, share in zip(begins, (0.2, 0.75, 0.2), strict=True)]
    (tmp_path / "others.csv").write_text("\n".join(["seconds,share", *rows, f"{1.9 * begins[2]!r},0"]))
    slow = given(tmp_path, made.cluster, "{where: g0-g1, trace: others.csv}")
    _, section = played(made, slow, database)
    windows = tuple(
        Slowdown("g0-g1", factor, "network", steps)
        for factor, steps in ((1.25, (0, 9)), (4.0, (10, 14)), (1.25, (15, 10**6)))
    )
    _, same = played(made, Slow(windows), database)
    assert section.phases[:2] == same.phases[:2]
    assert section.phases[2].first_step == same.phases[2].first_step == 15
    assert section.phases[2].step_s == same.phases[2].step_s


def test_traffic_meets_windows_of_steps_and_more_traffic(made: Plan, database: Hwdb, tmp_path: Path) -> None:
    """Every step plays the product of what holds when it begins."""
    (tmp_path / "others.csv").write_text("seconds,share\n0,0\n1,0.5\n3,0\n")
    entries = "{where: g0-g1, trace: others.csv}, {where: n0, factor: 3, steps: [2, 1000000]}"
    _, section = played(made, given(tmp_path, made.cluster, entries), database)
    alone = play_slow(made, (), database).step_s
    late = (Slowdown("n0", 3.0), Slowdown("g0-g1", 2.0, "network"))
    assert section.phases[0].step_s == pytest.approx(alone) and section.phases[0].last_step == 1
    assert {round(phase.step_s / alone, 6) for phase in section.phases[1:]} == {
        round(play_slow(made, some, database).step_s / alone, 6) for some in (late, late[:1])
    }


@pytest.mark.slow
def test_planning_under_heavier_traffic_never_has_a_shorter_step(
    made: Plan, database: Hwdb, tmp_path: Path
) -> None:
    (tmp_path / "wide.yaml").write_text(SMALL.replace("2048}", "8192}").replace("512", "2048"))
    wide, job = load_model(str(tmp_path / "wide.yaml")), Job(global_batch=64, seq=512, dtype="fp16")

    @cache
    def planned(where: Cluster) -> Result:
        quick = SearchOptions(replicate=False, spanning=False)
        return api.plan(wide, where, job, wishes=quick, hwdb=database)

    steps = [planned(made.cluster).document.step_s]
    for share in (0.3, 0.9, 0.99):
        slow = given(tmp_path, made.cluster, f"{{where: network, used: {share}}}")
        found = plan_slow(made.cluster, slow, database, planned)
        section = found.document.slow
        assert section is not None and found.document.step_s <= section.unchanged_step_s
        # What is planned anew is played under the same traffic, once.
        plan = replace(found.forecast.plan, cluster=made.cluster)
        assert found.document.step_s == play_slow(plan, slow.slowdowns, database).step_s
        steps.append(found.document.step_s)
    assert steps == sorted(steps)
    assert steps[-1] > 1.5 * steps[0]


def test_plan_files_keep_traffic_and_simulate_plays_it_again(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    (tmp_path / "lab.yaml").write_text(LAB.format(25, 25, 20))
    (tmp_path / "others.csv").write_text("seconds,share\n0,0.5\n60,0.8\n90,0\n")
    slow, plan = tmp_path / "slow.yaml", tmp_path / "plan.json"
    slow.write_text("slow: [{where: network, trace: others.csv}]")
    asked = ("estimate", tmp_path / "small.yaml", tmp_path / "lab.yaml", "--pp", 2, "--dp", 4)
    first = tangram(*asked, "--global-batch", 16, "--seq", 512, "--slow", slow, "--json", "-o", plan).json
    (tmp_path / "others.csv").unlink()
    again = tangram("simulate", plan, "--json").json
    assert again["slow"] == first["slow"] and again["step_s"] == pytest.approx(first["step_s"], rel=1e-12)
    assert first["slow"]["slowdowns"][0]["used"] == [[0.0, 0.5], [60.0, 0.8]]
    assert first["slow"]["slowdowns"][0]["factor"] == pytest.approx(1 / 0.4)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{where: network, used: 1}", "below 1: 0.3"),
        ("{where: network, used: -0.1}", "0 or more"),
        ("{where: network, used: true}", "used"),
        ("{where: network, used: much}", "used"),
        (f"{{where: network, by_hour: {[0.1] * 23}}}", "23 shares; give 24"),
        ("{where: network, by_hour: 0.3}", "give 24"),
        (f"{{where: network, by_hour: {[0.1] * 23 + [1]}}}", "below 1"),
        (f"{{where: network, by_hour: {[0.1] * 24}, starts_at: noon}}", 'e.g. "09:00"'),
        ("{where: network, used: 0.3, starts_at: 9}", "one of `used: 0.3`"),
        ("{where: network, used: 0.3, trace: others.csv}", "one of `used: 0.3`"),
        ("{where: network, used: 0.3, factor: 2}", "no factor"),
        ("{where: n0, used: 0.3, what: compute}", "what: network"),
        ("{where: network, trace: others.csv, steps: [0, 9]}", "leave out steps and seconds"),
        ("{where: network, trace: missing.csv}", "missing.csv: cannot be read"),
        ("{where: network, trace: others.csv}", "give times that rise from 0"),
        ("{where: network, trace: wrong.csv}", "give the columns seconds,share"),
        ("{where: network, trace: nan.csv}", "used"),
        ("{where: nowhere, used: 0.3}", "the whole `network`"),
        ("{where: network, factor: 2}", "a link has no compute"),
        ("{where: n0, used: 0.3, seconds: [0, 9]}", "no windows of seconds in a step"),
        ("{where: g0-g1, factor: 3, what: network, seconds: [0, 9]}", "no windows of seconds in a step"),
    ],
)
def test_bad_traffic_is_answered_with_what_to_type(
    made: Plan, tmp_path: Path, entry: str, message: str
) -> None:
    (tmp_path / "others.csv").write_text("seconds,share\n0,0.5\n60,0.8\n60,0.8\n90,0\n")
    (tmp_path / "wrong.csv").write_text("time,share\n0,0.5\n60,0.8\n")
    (tmp_path / "nan.csv").write_text("seconds,share\n0,nan\n60,0.8\n")
    with pytest.raises(TangramError, match=message):
        with_slowdowns(made.cluster, given(tmp_path, made.cluster, entry).slowdowns)


def test_a_trace_of_too_many_changes_is_refused(made: Plan, database: Hwdb, tmp_path: Path) -> None:
    rows = "\n".join(f"{3600 * row},{0.1 + row / 1000}" for row in range(103))
    (tmp_path / "others.csv").write_text(f"seconds,share\n{rows}\n")
    slow = given(tmp_path, made.cluster, "{where: network, trace: others.csv}")
    with pytest.raises(BadInputError, match="means of longer times"):
        replayed(made, slow, database)


def test_shares_that_last_for_less_than_a_step_are_planned_for_by_their_mean_alone(
    made: Plan, database: Hwdb, tmp_path: Path
) -> None:
    (tmp_path / "others.csv").write_text("seconds,share\n0,0\n1e-5,0.9\n1e-4,0\n")
    slow = given(tmp_path, made.cluster, "{where: network, trace: others.csv}")
    document, section = played(made, slow, database)
    assert not section.phases and not section.traffic_step_s
    assert "background-traffic-within-steps" in {each.code for each in slow_findings(document)}


def test_traffic_of_some_steps_says_in_which_and_steps_after_a_trace_are_refused(
    made: Plan, database: Hwdb, tmp_path: Path
) -> None:
    document, _ = played(
        made, given(tmp_path, made.cluster, "{where: network, used: 0.5, steps: [3, 5]}"), database
    )
    (said,) = [each for each in slow_findings(document) if each.code == "background-traffic"]
    assert said.figures["over"] == "in steps 3 to 5"
    (tmp_path / "others.csv").write_text("seconds,share\n0,0\n10,0.5\n20,0\n")
    late = "{where: network, trace: others.csv}, {where: n0, factor: 3, steps: [1000000, 1000001]}"
    with pytest.raises(BadInputError, match="give steps from 0 to"):
        played(made, given(tmp_path, made.cluster, late), database)
