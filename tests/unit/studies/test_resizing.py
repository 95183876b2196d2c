"""Columns shared by speed in plans: on request, never slower, the pruned share told; windows that overlap."""

from dataclasses import replace
from pathlib import Path

import pytest

from tangram_sim.clusters import Cluster
from tangram_sim.health import HEALTHY, Resizing, Slowdown, Speed, slowed
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.reliability.stragglers.tensor_shares import even
from tangram_sim.reliability.stragglers.tensor_traffic import METHODS, sharing_costs
from tangram_sim.studies import api
from tangram_sim.studies.forecast import forecast
from tangram_sim.studies.resizing import resized, shared_out, sharing_stages
from tangram_sim.studies.slowness import play_slow, slow_plan
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan
from tests.commands import MODEL, tangram

LAB = "name: lab\nnodes:\n  - {count: 2, gpu: V100-SXM2-16GB, gpus: 4, intra_link: NVLink2, nic_gbps: 100}\n"
JOB = Job(global_batch=8, seq=1024, dtype="fp16")
SLOW = (Slowdown("n0.1", 2.0),)


@pytest.fixture(scope="module")
def database() -> Hwdb:
    return Hwdb.load()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("resizing")
    (path / "model.yaml").write_text(MODEL.replace("hidden: 512", "hidden: 2048"))
    (path / "lab.yaml").write_text(LAB)
    return path


@pytest.fixture(scope="module")
def made(folder: Path, database: Hwdb) -> Plan:
    model, cluster = load_model(str(folder / "model.yaml")), load_cluster(str(folder / "lab.yaml"), database)
    assert isinstance(cluster, Cluster)
    return api.estimate(model, cluster, JOB, Uniform(tp=4, pp=2), hwdb=database).forecast.plan


def test_only_the_group_with_the_slow_rank_shares_by_speed_and_is_faster(made: Plan, database: Hwdb) -> None:
    even = play_slow(made, SLOW, database).step_s
    sent = play_slow(made, SLOW, database, resizing=Resizing()).step_s
    pruned = play_slow(made, SLOW, database, resizing=Resizing(max_pruned=0.2)).step_s
    healthy = play_slow(made, (), database).step_s
    assert healthy <= pruned <= sent <= even
    assert pruned < even
    plan, groups = resized(slow_plan(made, SLOW), Resizing(max_pruned=0.2), database)
    assert [group.ranks for group in groups] == [(0, 1, 2, 3)]
    assert groups[0].before == pytest.approx(2.0)
    assert 1.0 <= groups[0].after < 2.0
    assert dict(plan.cluster.health.compute)[0] == groups[0].after


def test_pruning_stays_within_what_is_allowed_and_falls_with_it(made: Plan, database: Hwdb) -> None:
    before = 2.0
    for most in (0.0, 0.02, 0.1, 0.5):
        _, groups = resized(slow_plan(made, SLOW), Resizing(max_pruned=most), database)
        pace = groups[0].after if groups else 2.0
        assert pace <= before + 1e-9
        assert all(group.shares.pruned_share <= most + 1e-9 for group in groups)
        before = pace


def test_published_traffic_goes_with_every_microbatch_and_unit_migration_with_the_step(
    made: Plan, database: Hwdb
) -> None:
    """So where links are fast enough for both, unit migration sends less and is no slower."""
    slow = slow_plan(made, SLOW)
    played = forecast(replace(slow, cluster=replace(slow.cluster, health=HEALTHY)), database)
    stage = next(iter(sharing_stages(played, database)))
    microbatches = made.pipelines[0].microbatches
    published, unit = (stage.added.traffic(method) for method in ("semi-migration", "unit-migration"))
    once = sharing_costs(stage.setting, stage.blocks, 1)
    assert published.whole == pytest.approx(microbatches * once.published.whole)
    assert unit == once.unit
    assert published.at(0.5) > 12 * unit.at(0.5)
    x = (1.0, 2.0, 1.0, 1.0)
    found = {method: shared_out(stage, x, Resizing(method=method)) for method in METHODS[:2]}
    assert found["unit-migration"].layer_s <= found["semi-migration"].layer_s
    assert found["unit-migration"].verdict == "migrate"
    fixed = shared_out(stage, x, Resizing(0.5, method="zero-resizing", shares="published"))
    assert fixed.pruned == (0.0, 0.5, 0.0, 0.0)


def test_products_of_all_ranks_are_those_of_the_priced_plan_where_shares_are_even(
    made: Plan, database: Hwdb
) -> None:
    for stage in sharing_stages(forecast(made, database), database):
        whole_s = stage.costs.columns_s + stage.costs.fixed_s
        shares = even([1.0] * 4, stage.costs)
        assert stage.layers_s(shares) == pytest.approx([whole_s] * 4)
        twice, half = stage.products_s([2.0, 0.5], [2.0, 0.5])
        assert twice > 3 * half


def test_nothing_slow_changes_nothing(made: Plan, database: Hwdb) -> None:
    plan, groups = resized(made, Resizing(0.3), database)
    assert groups == ()
    assert plan == replace(made, cluster=plan.cluster)


def test_plan_files_carry_it_and_play_it_again(folder: Path, tmp_path: Path) -> None:
    slow, plan, again = tmp_path / "slow.yaml", tmp_path / "plan.json", tmp_path / "again.json"
    slow.write_text("slow: [{where: n0.1, factor: 2}]\nresizing: {max_pruned: 0.2}\n")
    asked = (
        "estimate",
        folder / "model.yaml",
        folder / "lab.yaml",
        "--tp",
        4,
        "--pp",
        2,
        "--global-batch",
        8,
    )
    assert tangram(*asked, "-o", plan).code == 0
    told = tangram("simulate", plan, "--slow", slow, "--json").json
    section = told["slow"]
    assert section["resizing"] == {
        "method": "unit-migration",
        "shares": "best",
        "max_pruned": 0.2,
        "cap": 0.5,
    }
    assert [group["ranks"] for group in section["resized"]] == [[0, 1, 2, 3]]
    assert 0 <= section["pruned_share"] <= 0.2
    assert any("share columns by speed" in note for note in told["notes"])
    assert tangram(*asked, "--slow", slow, "-o", again).code == 0
    assert tangram("simulate", again, "--json").json["step_s"] == pytest.approx(told["step_s"])
    for text, said in (
        ("slow: []\nresizing: {max_pruned: 2}\n", "resizing.max_pruned"),
        ("slow: []\nresizing: {most: 0.1}\n", "resizing.most"),
        ("slow: []\nresizing: {method: zero-resizing}\n", "give max_pruned above 0"),
        ("slow: []\nresizing: {method: semi}\n", "resizing.method"),
    ):
        slow.write_text(text)
        found = tangram("simulate", plan, "--slow", slow)
        assert found.code == 2
        assert said in found.err


def test_two_windows_of_one_stage_are_one_speed(made: Plan, database: Hwdb) -> None:
    windows = [Slowdown("stage 0", 2.0, seconds=(0.0, 0.01)), Slowdown("stage 0", 3.0, seconds=(0.005, 0.02))]
    both = play_slow(made, windows, database)
    assert both.step_s >= max(play_slow(made, [window], database).step_s for window in windows) - 1e-12
    assert play_slow(made, windows, database, "reference").step_s == pytest.approx(both.step_s)
    product = slowed(2.0, 0.0, 1.0).times(slowed(3.0, 0.5, 2.0))
    assert product == Speed((0.0, 0.5, 1.0, 2.0), (0.5, 1 / 6, 1 / 3, 1.0))
