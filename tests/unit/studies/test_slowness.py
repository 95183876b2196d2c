"""Slow parts of a cluster: injected into plans, alike on both engines, and planned around."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tangram_sim.clusters import Cluster
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.health import Pause, Slowdown
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.models import Model
from tangram_sim.placement.islands import find_islands
from tangram_sim.placement.slowing import with_slowdowns
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.studies import api
from tangram_sim.studies.results import Result
from tangram_sim.studies.slow_files import PRESETS, Slow, read_every_slow, read_slow
from tangram_sim.studies.slow_plans import plan_slow, replayed
from tangram_sim.studies.slowness import lossless_bound_s, play_slow
from tangram_sim.training.plan import Plan
from tests.commands import files, tangram
from tests.unit.studies.small_model import JOB, SMALL

LAB = """\
name: lab
nodes:
  - {count: 4, gpu: T4, gpus: 2, intra_link: PCIe3x16, nic_gbps: 25}
  - {count: 1, gpu: V100-PCIe-16GB, gpus: 2, intra_link: PCIe3x16, nic_gbps: 25}
"""


@pytest.fixture(scope="module")
def database() -> Hwdb:
    return Hwdb.load()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("slow")
    (folder / "small.yaml").write_text(SMALL)
    (folder / "lab.yaml").write_text(LAB)
    return folder / "small.yaml", folder / "lab.yaml"


@pytest.fixture(scope="module")
def small(inputs: tuple[Path, Path]) -> Model:
    return load_model(str(inputs[0]))


@pytest.fixture(scope="module")
def lab(inputs: tuple[Path, Path], database: Hwdb) -> Cluster:
    return load_cluster(str(inputs[1]), database)


@pytest.fixture(scope="module")
def made(small: Model, lab: Cluster, database: Hwdb) -> Plan:
    """Four stages of two T4s each; the V100s stay idle."""
    layout = Uniform(pp=4, dp=2, order=("g0",))
    return api.estimate(small, lab, JOB, layout, hwdb=database).forecast.plan


def test_a_slow_node_slows_its_stage_alone_and_nothing_else(
    small: Model, lab: Cluster, database: Hwdb
) -> None:
    # Sequences long enough that devices, not the launches of their hosts, take the time of a pass.
    busy = replace(JOB, seq=2048)
    made = api.estimate(small, lab, busy, Uniform(pp=4, dp=2, order=("g0",)), hwdb=database).forecast.plan
    healthy = replayed(made, Slow(), database).document
    slow = replayed(made, Slow((Slowdown("n1", 2.0),)), database).document
    for before, after in zip(healthy.stages, slow.stages, strict=True):
        factor = 2.0 if before.stage == 1 else 1.0
        # Launching kernels is not slowed.
        assert after.forward_s == pytest.approx(before.forward_s * factor, rel=0.1)
        if factor == 1.0:
            assert after.forward_s == before.forward_s
    assert slow.slow is not None
    assert slow.slow.slowdown == pytest.approx(slow.step_s / healthy.step_s)
    assert slow.step_s > healthy.step_s


@pytest.mark.parametrize(
    "slowdowns",
    [
        (Slowdown("n0.1", 1.7),),
        (Slowdown("r5", 3.0), Slowdown("T4", 1.2)),
        (Slowdown("n2", 4.0, "network"),),
        (Slowdown("g0", 1.5, "memory"),),
        (Slowdown("stage 3", 2.0),),
        (Slowdown("stage 1", 5.0, seconds=(0.01, 0.04)), Slowdown("n3", 0.5)),
    ],
)
def test_engines_play_slowness_alike(made: Plan, database: Hwdb, slowdowns: tuple[Slowdown, ...]) -> None:
    fast = play_slow(made, slowdowns, database)
    reference = play_slow(made, slowdowns, database, "reference")
    assert fast.step_s == pytest.approx(reference.step_s, rel=1e-9)
    assert fast.step_s != play_slow(made, (), database).step_s


def test_a_window_hurts_less_than_lasting_slowness_and_more_than_none(made: Plan, database: Hwdb) -> None:
    healthy = play_slow(made, (), database).step_s
    lasting = play_slow(made, (Slowdown("stage 1", 3.0),), database).step_s
    window = play_slow(made, (Slowdown("stage 1", 3.0, seconds=(0.2 * healthy, 0.5 * healthy)),), database)
    assert healthy < window.step_s < lasting
    throughout = play_slow(made, (Slowdown("stage 1", 3.0, seconds=(0.0, 100 * lasting)),), database)
    # Passes are what a window slows; gradients and the optimizer keep their pace.
    assert throughout.step_s == pytest.approx(lasting, rel=0.02)


def test_phases_and_pauses_are_told(made: Plan, database: Hwdb) -> None:
    slow = Slow((Slowdown("n0", 2.0, steps=(10, 19)), Slowdown("n3", 1.5, steps=(15, 30))), Pause(0.2, 0.01))
    section = replayed(made, slow, database).document.slow
    assert section is not None
    assert [(p.first_step, p.last_step) for p in section.phases] == [
        (0, 9),
        (10, 14),
        (15, 19),
        (20, 30),
        (31, None),
    ]
    steps = [phase.step_s for phase in section.phases]
    assert steps[0] == steps[-1] == section.healthy_step_s
    assert steps[2] >= max(steps[1], steps[3])
    assert section.pause_step_s == pytest.approx(0.2 * (1 - 0.99**8))
    assert Pause(0.2, every_steps=500).mean_s(8) == pytest.approx(0.2 / 500)


def test_slowing_everything_alike_leaves_the_islands_as_they_are(lab: Cluster, database: Hwdb) -> None:
    names = [island.name for island in find_islands(lab, "fp16", hwdb=database)]
    assert names == ["g0", "g1"]
    slow = with_slowdowns(lab, [Slowdown("g0", 1.5), Slowdown("g1", 1.5)])
    assert [island.name for island in find_islands(slow, "fp16", hwdb=database)] == names


def test_a_slow_node_is_an_island_of_its_own(lab: Cluster, database: Hwdb) -> None:
    islands = find_islands(with_slowdowns(lab, [Slowdown("n2", 1.6)]), "fp16", hwdb=database)
    alone = next(island for island in islands if island.node_indices == (2,))
    other = next(island for island in islands if 0 in island.node_indices)
    assert alone.gpu.peak_flop_per_s("fp16") == pytest.approx(other.gpu.peak_flop_per_s("fp16") / 1.6)
    assert alone.gpu.name == other.gpu.name == "T4"


@pytest.mark.parametrize(
    ("slow", "words"),
    [
        (Slow((Slowdown("foo", 1.5, seconds=(0.0, 1.0)),)), "unknown part of the cluster 'foo'"),
        (Slow((Slowdown("n0", 1.5),), sequences=((128,),)), "give them to simulate"),
    ],
)
def test_what_cannot_be_slow_is_refused_before_planning(lab: Cluster, slow: Slow, words: str) -> None:
    with pytest.raises(TangramError, match=words):
        plan_slow(lab, slow, Hwdb.load(), lambda _: pytest.fail("planned first"))


@pytest.mark.slow
def test_planning_around_a_slow_node_is_never_worse_than_going_on(
    small: Model, lab: Cluster, database: Hwdb
) -> None:
    quick = SearchOptions(replicate=False, spanning=False)

    @cache
    def planned(where: Cluster) -> Result:
        return api.plan(small, where, JOB, wishes=quick, hwdb=database)

    same = plan_slow(lab, Slow((Slowdown("n1", 1.0),)), database, planned)
    assert same.document.slow is None
    plain = planned(lab)
    assert same.document.pipelines == plain.document.pipelines
    assert same.document.step_s == plain.document.step_s
    found = plan_slow(lab, Slow((Slowdown("n4", 3.0), Slowdown("n0", 0.8))), database, planned).document
    assert found.slow is not None
    assert found.step_s <= found.slow.unchanged_step_s
    assert found.slow.healthy_step_s == plain.document.step_s
    # What no plan beats is said of the cluster as it runs now.
    assert plain.document.work_bound_step_s < found.lower_bound_step_s <= found.step_s
    now = planned(with_slowdowns(lab, [Slowdown("n4", 3.0), Slowdown("n0", 0.8)])).document
    assert found.lower_bound_step_s == now.lower_bound_step_s


def test_the_lossless_bound_of_equal_gpus_is_the_closed_form(lab: Cluster) -> None:
    slow = with_slowdowns(lab, [Slowdown("n4", 2.0)])
    t4, v100 = (lab.groups[group].node.gpu.peak_flop_per_s("fp16") for group in (0, 1))
    expected = (8 * t4 + 2 * v100) / (8 * t4 + 2 * v100 / 2)
    assert lossless_bound_s(1.0, slow, "fp16") == pytest.approx(expected)


def test_a_slow_link_is_slow(small: Model, lab: Cluster, database: Hwdb) -> None:
    spread = api.estimate(small, lab, JOB, Uniform(pp=5, dp=2), hwdb=database).forecast.plan
    healthy = play_slow(spread, (), database)
    slow = play_slow(spread, (Slowdown("g0-g1", 50.0, "network"),), database)
    assert slow.step_s > healthy.step_s


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n9=2", "no node 9; they are 0 to 4"),
        ("n0.5=2", "no GPU 5"),
        ("r99=2", "no rank 99"),
        ("n0=0", "give a number above 0"),
        ("n0=-1", "give a number above 0"),
        ("n0=x", "WHERE=FACTOR"),
        ("A100=2", "unknown part of the cluster"),
        ("stage 0=2", "known of a plan only"),
        ("g0-g1=2", "a link has no compute"),
        ("slow: [{where: n0, factor: 0}]", "factor"),
        ("slow: [{where: n0}]", "factor"),
        ("slow: [{where: n0, factor: 2, whta: compute}]", "whta"),
        ("slow: [{where: n0, factor: 2, what: disk}]", "unknown kind of slowness"),
        ("slow: [{where: n0, factor: {lognormal: {median: -1, sigma: 1}}}]", "lognormal"),
        ("slow: [{where: n0, factor: 2, steps: [5, 1]}]", "the first, then the last"),
        ("slow: [{preset: nobody}]", "unknown preset"),
        ("slow: 3", "give `slow:"),
        ("{slow: [], pause: {seconds: -1}}", "pause"),
        ("slow: [{where: g0-g0, factor: 2, what: network}]", "nothing limits"),
    ],
)
def test_bad_input_is_named(lab: Cluster, tmp_path: Path, text: str, message: str) -> None:
    given = text
    if text.startswith(("slow", "{")):
        (tmp_path / "slow.yaml").write_text(text)
        given = str(tmp_path / "slow.yaml")
    with pytest.raises(TangramError, match=message):
        with_slowdowns(lab, read_slow(given, lab).slowdowns)


def test_pairs_given_several_times_add_up_and_a_file_stands_alone(lab: Cluster, tmp_path: Path) -> None:
    together = read_every_slow(["n1=1.4", "n0=1.3,n2=1.2"], lab)
    assert together == read_slow("n1=1.4,n0=1.3,n2=1.2", lab)
    file = tmp_path / "slow.yaml"
    file.write_text("slow: [{where: n0, factor: 2}]")
    assert read_every_slow([str(file)], lab) == read_slow(str(file), lab)
    with pytest.raises(BadInputError, match="stands alone"):
        read_every_slow(["n1=1.4", str(file)], lab)


def test_the_command_hears_every_slow(tmp_path: Path) -> None:
    model, cluster = files(tmp_path)
    asked = ("estimate", model, cluster, "--dp", 12, "--global-batch", 24, "--json")
    healthy, once, twice = (
        tangram(*asked, *slow).json["step_s"]
        for slow in ((), ("--slow", "n1=1.4,n2=9"), ("--slow", "n2=9", "--slow", "n1=1.4"))
    )
    assert twice == once > healthy


def test_clusters_with_a_stated_graph_take_slow_gpus_but_no_slow_network(database: Hwdb) -> None:
    stated = load_cluster("azure-c1", database)
    if stated.wiring.full:
        with pytest.raises(BadInputError, match="own graph"):
            with_slowdowns(stated, [Slowdown("n0", 2.0, "network")])
    assert (
        with_slowdowns(stated, [Slowdown("n0", 2.0)]).gpu_of(0).memory_bytes_per_s
        < stated.gpu_of(0).memory_bytes_per_s
    )


def test_draws_depend_on_their_seed_alone(lab: Cluster, tmp_path: Path) -> None:
    def drawn(text: str) -> tuple[Slowdown, ...]:
        (tmp_path / "slow.yaml").write_text(text)
        return read_slow(str(tmp_path / "slow.yaml"), lab).slowdowns

    law = "slow: [{{where: n0, factor: {{lognormal: {{median: 1.3, sigma: 0.2, seed: {0}}}}}}}]"
    assert drawn(law.format(1)) == drawn(law.format(1)) != drawn(law.format(2))
    several = [drawn(f"slow: [{{preset: greyhound-network, seed: {seed}}}]") for seed in range(200)]
    # 39.3 % of jobs have one slow node; 200 draws lie within four standard deviations of it.
    assert sum(map(bool, several)) / 200 == pytest.approx(PRESETS["greyhound-network"].job_share, abs=0.14)


def test_megascale_machines_are_slow_as_often_as_published() -> None:
    """0.5 % of machines: at least one among 128 with probability 0.47."""
    assert 1 - (1 - PRESETS["megascale"].node_share) ** 128 == pytest.approx(0.47, abs=0.01)


def test_the_verbs_take_slowness_and_write_it_into_plans(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    arguments = (*map(str, inputs), "--pp", "5", "--dp", "2", "--global-batch", "16", "--seq", "512")
    plan = tmp_path / "plan.json"
    healthy = tangram("estimate", *arguments, "--json").json
    slow = tangram("estimate", *arguments, "--slow", "n4=2", "--json", "-o", plan).json
    assert healthy["slow"] is None
    assert slow["slow"]["slowdowns"][0]["where"] == "n4"
    assert slow["slow"]["healthy_step_s"] == pytest.approx(healthy["step_s"], rel=1e-12)
    again = tangram("simulate", plan, "--json").json
    assert again["step_s"] == pytest.approx(slow["step_s"], rel=1e-12)
    assert tangram("simulate", plan, "--slow", "n4=1", "--json").json["step_s"] == pytest.approx(
        healthy["step_s"], rel=1e-12
    )
    faster = tangram("simulate", plan, "--slow", "n4=0.5")
    assert "makes its rank faster" in faster.out
    assert tangram("simulate", plan, "--slow", "n7=2").code == 2
    asked = (
        *map(str, inputs),
        "--planner",
        "metis",
        "--global-batch",
        "16",
        "--seq",
        "512",
        "--slow",
        "n4=2",
    )
    section = tangram("plan", *asked, "--json").json["slow"]
    assert section["slowdowns"][0]["where"] == "n4" and section["unchanged_step_s"] > 0


def test_lengths_of_sequences_make_microbatches_unequal(made: Plan, database: Hwdb, tmp_path: Path) -> None:
    """Full sequences change nothing; engines agree; half as many tokens take less than half, a short
    tail least.
    """
    microbatches, held = made.pipelines[0].microbatches, made.pipelines[0].microbatch
    full = [(512,) * held] * microbatches
    healthy = play_slow(made, (), database).step_s
    assert play_slow(made, (), database, sequences=full).step_s == pytest.approx(healthy, rel=1e-12)
    halves = [(256,) * held] * microbatches
    uneven = [(512,) * held if number % 2 else (64,) * held for number in range(microbatches)]
    short = play_slow(made, (), database, sequences=halves).step_s
    assert 0.3 * healthy < short < 0.75 * healthy
    for engine in ("fast", "reference"):
        assert play_slow(made, (), database, engine, uneven).step_s == pytest.approx(
            play_slow(made, (), database, sequences=uneven).step_s, rel=1e-9
        )
    with pytest.raises(BadInputError, match="the plan has"):
        play_slow(made, (), database, sequences=full[1:])
    (tmp_path / "lengths.txt").write_text("\n".join(" ".join(map(str, line)) for line in uneven))
    (tmp_path / "slow.yaml").write_text("sequences: lengths.txt\n")
    given = read_slow(str(tmp_path / "slow.yaml"), made.cluster)
    section = replayed(made, given, database).document.slow
    assert section is not None
    assert section.sequences == [list(line) for line in uneven]


def test_rates_and_bounds_count_the_tokens_that_sequences_hold(made: Plan, database: Hwdb) -> None:
    """Full sequences change no figure; short ones neither exceed the peak nor end below the bound."""
    healthy = replayed(made, Slow(()), database).document
    for length in (512, 256, 64):
        counts = [(length,) * made.pipelines[0].microbatch] * made.pipelines[0].microbatches
        told = replayed(made, Slow((), sequences=tuple(counts)), database).document
        assert told.tokens_per_s * told.step_s == pytest.approx(made.job.global_batch * length)
        assert told.lower_bound_step_s <= told.step_s
        assert 0 < told.mfu <= healthy.mfu * (1 + 1e-9)
        if length == 512:
            assert told.mfu == pytest.approx(healthy.mfu)
            assert told.lower_bound_step_s == pytest.approx(healthy.lower_bound_step_s)
