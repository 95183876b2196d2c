"""Generated clusters, models, jobs and damaged commands: an answer or a named error, nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb, cluster_from_dict, load_model
from tangram_sim.layouts import RECOMPUTE
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.studies import api
from tangram_sim.studies.results import Result
from tangram_sim.training.job import OPTIMIZER_STATE_BYTES, RECIPES, Job
from tangram_sim.training.schedules import SCHEDULES
from tests.commands import Finished
from tests.fuzz.cases import COMPILING_S, broken_rule, case, run, sound_case
from tests.fuzz.inputs import COMMANDS, write

CI_CASES, CI_PARTS = 300, 6
HWDB = Hwdb.load()
QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)

GPUS = ("T4", "V100-PCIe-16GB", "A100-SXM4-80GB", "H100-SXM5-80GB", "RTX-3090", "MI250X", "P100-PCIe-16GB")
LINKS = ("PCIe3x16", "PCIe4x16", "NVLink2", "NVLink3")


@st.composite
def clusters(draw: st.DrawFn) -> dict[str, Any]:
    """One to three groups, six nodes at most, odd GPU counts, bridges, uplinks and limits."""
    groups = []
    for _ in range(draw(st.integers(1, 3))):
        gpus = draw(st.sampled_from((1, 2, 3, 4, 5, 8)))
        group: dict[str, Any] = {
            "count": draw(st.integers(1, 2)),
            "gpu": draw(st.sampled_from(GPUS)),
            "gpus": gpus,
            "intra_link": draw(st.sampled_from(LINKS)),
            "nic_gbps": draw(st.sampled_from((0.01, 1, 25, 100, 3200))),
        }
        if gpus > 1 and draw(st.booleans()):
            group["links"] = [[first, first + 1] for first in range(0, gpus - 1, 2)]
        if draw(st.booleans()):
            group["scale_up_nodes"] = draw(st.integers(1, 3))
        groups.append(group)
    found: dict[str, Any] = {"nodes": groups}
    if draw(st.booleans()):
        pair = [draw(st.integers(0, len(groups) - 1)) for _ in range(2)]
        limit = {"groups": pair, "gbps": draw(st.sampled_from((0.1, 10.0))), "latency_us": 50}
        found["network"] = {"oversubscription": draw(st.sampled_from((1.0, 7.5))), "between": [limit]}
    return found


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    """A model.yaml of two to six layers, dense or with experts, tied or not."""
    heads = draw(st.sampled_from((8, 4, 16, 8, 6, 1)))
    layers = []
    for _ in range(draw(st.integers(1, 2))):
        layer: dict[str, Any] = {
            "count": draw(st.integers(1, 3)),
            "attention": {"heads": heads, "head_dim": 32},
        }
        width = draw(st.sampled_from((64, 1000, 16384)))
        if draw(st.booleans()):
            layer["feed_forward"] = {"width": width, "gated": draw(st.booleans())}
        else:
            layer["experts"] = {"count": draw(st.sampled_from((3, 8))), "active": 2, "width": width}
        layers.append(layer)
    vocab = draw(st.sampled_from((17, 32000, 256000)))
    return {"hidden": 32 * heads * 4, "vocab": vocab, "layers": layers, "tied": draw(st.booleans())}


def jobs(schedules: tuple[str, ...]) -> st.SearchStrategy[Job]:
    return st.builds(
        Job,
        global_batch=st.sampled_from((24, 8, 6, 60, 1)),
        seq=st.sampled_from((512, 2048, 512, 16, 65536, 7)),
        dtype=st.sampled_from(("auto", "fp16", "fp32", "auto", *RECIPES)),
        optimizer=st.sampled_from(tuple(OPTIMIZER_STATE_BYTES)),
        schedule=st.sampled_from(schedules),
    )


@st.composite
def wishes(draw: st.DrawFn) -> SearchOptions:
    """Mostly wishes that can be met; every third fixes degrees or names islands that may not exist."""
    if draw(st.integers(0, 2)):
        return SearchOptions(top=draw(st.sampled_from((1, 3))), sub_islands=draw(st.booleans()))
    names = st.lists(st.sampled_from(("g0", "g1", "g2", "g0+g1", "g0.1", "g9")), max_size=2)
    degrees = st.sampled_from(("tp", "dp", "cp", "ep", "pp", "zero_stage"))
    fixed = draw(st.dictionaries(degrees, st.sampled_from((1, 2, 3)), max_size=2))
    recompute = draw(st.sampled_from((RECOMPUTE, ("none",), ("selective",), ("full",))))
    constraints = Constraints(tuple(sorted(fixed.items())), recompute, draw(st.sampled_from((0, 0, 1, 5))))
    return SearchOptions(constraints, tuple(draw(names)), tuple(draw(names)))


@st.composite
def uniforms(draw: st.DrawFn) -> Uniform:
    """Mostly layouts that exist somewhere; every third holds one value that may break a law."""
    values: dict[str, Any] = {
        "tp": draw(st.sampled_from((1, 2, 1, 4))),
        "pp": draw(st.sampled_from((1, 2, 3))),
        "dp": draw(st.sampled_from((1, 2, 4, 0))),
        "cp": draw(st.sampled_from((1, 1, 2))),
        "zero_stage": draw(st.integers(0, 3)),
        "recompute": draw(st.sampled_from(RECOMPUTE)),
        "sequence_parallel": draw(st.booleans()),
    }
    odd = {
        "tp": (0, 3, 16),
        "dp": (-1, 3, 1000),
        "cp": (3, 0),
        "ep": (2, 3, 8),
        "vpp": (2, 3),
        "zero_stage": (4,),
        "micro_batch": (0, 2, 100),
        "layers": ((1, 1), (0, 2), (2, 0), (1, 0, 1), (1, 1, 1), (9, 9)),
        "order": (("g0",), ("g1", "g0"), ("g0", "g0"), ("g7",)),
    }
    if not draw(st.integers(0, 2)):
        name = draw(st.sampled_from(sorted(odd)))
        values[name] = draw(st.sampled_from(odd[name]))
    return Uniform(**values)


def sound(result: Result) -> None:
    """What every forecast must satisfy; the text of a plan file is made of it too (no NaN, no infinity)."""
    document = result.document
    assert 0 < document.lower_bound_step_s <= document.step_s * (1 + 1e-9)
    assert 0 < document.mfu <= 1
    assert 0 <= document.bubble_fraction < 1
    assert document.gpus_used <= document.gpus_total
    json.dumps(document.model_dump(), allow_nan=False)
    assert api.simulate(document).document.step_s == pytest.approx(document.step_s, rel=1e-12)


@pytest.mark.slow
@settings(QUIET, max_examples=25)
@given(cluster=clusters(), model=models(), job=jobs(("1f1b", "1f1b", "gpipe", "zb-h1")), wanted=wishes())
def test_planning_gives_a_plan_or_a_named_error(
    tmp_path_factory: pytest.TempPathFactory,
    cluster: dict[str, Any],
    model: dict[str, Any],
    job: Job,
    wanted: SearchOptions,
) -> None:
    path = tmp_path_factory.mktemp("model") / "model.yaml"
    path.write_text(yaml.safe_dump(model))
    try:
        found = api.plan(
            load_model(str(path)), cluster_from_dict(cluster, HWDB), job, wishes=wanted, hwdb=HWDB
        )
    except TangramError as error:
        assert str(error)
        return
    assert found.document.feasible
    sound(found)


@settings(QUIET, max_examples=120)
@given(
    cluster=clusters(),
    model=models(),
    job=jobs(("1f1b", "1f1b", *SCHEDULES)),
    layout=uniforms(),
)
def test_estimating_gives_a_forecast_or_a_named_error(
    tmp_path_factory: pytest.TempPathFactory,
    cluster: dict[str, Any],
    model: dict[str, Any],
    job: Job,
    layout: Uniform,
) -> None:
    path = tmp_path_factory.mktemp("model") / "model.yaml"
    path.write_text(yaml.safe_dump(model))
    try:
        found = api.estimate(load_model(str(path)), cluster_from_dict(cluster, HWDB), job, layout, hwdb=HWDB)
    except TangramError as error:
        assert str(error)
        return
    sound(found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """(folder, texts by name) of the sound files that commands are damaged from; all commands run once."""
    made = tmp_path_factory.mktemp("fuzz")
    sound = {name: (made / name).read_text() for name in write(made)}
    for number in range(len(COMMANDS)):
        outcome = run(sound_case(number), made, sound, COMPILING_S)
        assert (outcome.code, outcome.problem) == (0, ""), COMMANDS[number]
    return made, sound


@pytest.mark.slow
@pytest.mark.parametrize("part", range(CI_PARTS))
def test_every_damaged_command_is_answered_or_refused(part: int, folder: tuple[Path, dict[str, str]]) -> None:
    """A part of the cases of `make fuzz`: exit codes, output, files, time (tests/fuzz says the rule)."""
    place, sound = folder
    outcomes = [run(case(number, 0, sound), place, sound) for number in range(part, CI_CASES, CI_PARTS)]
    broken = [
        f"case {outcome.case.number}: {outcome.case.words}\n{outcome.problem}"
        for outcome in outcomes
        if outcome.problem
    ]
    assert not broken, "\n".join(broken)
    assert {outcome.code for outcome in outcomes} == {0, 2}


def test_the_judge_sees_broken_rules() -> None:
    """Each way of breaking the rule is told from keeping it."""
    kept = broken_rule(Finished(0, "an answer\n", ""), ("plan",), ["plan.json"])
    assert kept == ""
    for finished, words, made, problem in (
        (Finished(1, "", "error: x"), (), [], "exit code 1"),
        (Finished(2, "half an answer", "error: x"), (), [], "standard output"),
        (Finished(2, "", ""), (), [], "no message"),
        (Finished(2, "", "error: x"), (), ["plan.json"], "without an answer"),
        (Finished(0, "x\x1b[31m", ""), (), [], "control characters"),
        (Finished(0, "x", ""), ("--json",), [], "no JSON"),
        (Finished(0, "x", ""), (), [".plan.json.x1"], "partial file"),
    ):
        assert problem in broken_rule(finished, words, made)
