"""Generated clusters, models, jobs and broken files: a plan or a named error, never another exception."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb, cluster_from_dict, load_cluster, load_model
from tangram_sim.layouts import RECOMPUTE
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.studies import api
from tangram_sim.studies.results import Result
from tangram_sim.training.job import OPTIMIZER_STATE_BYTES, RECIPES, Job
from tangram_sim.training.schedules import SCHEDULES
from tests.commands import files, tangram

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
@settings(QUIET, max_examples=40)
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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("broken")
    finished = tangram("estimate", *files(folder), "--pp", 3, "--global-batch", 8, "-o", folder / "plan.json")
    assert finished.code == 0
    return folder


mutations = st.lists(
    st.tuples(st.integers(0, 10**6), st.sampled_from(["set", "cut", "double"]), st.integers(0, 255)),
    min_size=1,
    max_size=3,
)


def broken(text: bytes, changes: list[tuple[int, str, int]]) -> bytes:
    """`text` with bytes replaced, left out, or written twice."""
    data = bytearray(text)
    for where, how, value in changes:
        place = where % len(data)
        if how == "set":
            data[place] = value
        elif how == "cut":
            del data[place : place + 1 + value % 8]
        else:
            data[place:place] = data[place : place + 1 + value % 8]
    return bytes(data)


@pytest.mark.parametrize(
    ("file", "verb"),
    [
        ("plan.json", "simulate FILE"),
        ("lab.yaml", "islands FILE"),
        ("tiny.yaml", "models show FILE"),
    ],
)
@settings(QUIET, max_examples=80)
@given(changes=mutations)
def test_a_damaged_file_is_understood_or_refused(
    folder: Path, file: str, verb: str, changes: list[tuple[int, str, int]]
) -> None:
    path = folder / f"damaged-{file}"
    path.write_bytes(broken((folder / file).read_bytes(), changes))
    finished = tangram(*[str(path) if word == "FILE" else word for word in verb.split()])
    assert finished.code in (0, 2)
    assert bool(finished.err) == (finished.code == 2)


# Numbers that break something where a program does not look: none, negative, huge, of another kind.
VALUES = st.sampled_from([0, -1, 1, 3, 10**9, 10**30, 1e308, True, None, "", "8", [], {}, [1, 2]])


@settings(QUIET, max_examples=150)
@given(data=st.data())
def test_any_value_of_a_plan_file_may_be_replaced(folder: Path, data: st.DataObject) -> None:
    document = json.loads((folder / "plan.json").read_text())
    decisions = {
        key: document[key] for key in ("model", "cluster", "job", "pipelines", "schema_version", "hwdb_rows")
    }
    node: Any = decisions
    while True:
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        deeper = node[key]
        if not isinstance(deeper, dict | list) or not deeper or data.draw(st.integers(0, 7)) == 0:
            node[key] = data.draw(VALUES)
            break
        node = deeper
    path = folder / "edited.json"
    path.write_text(json.dumps(document | decisions))
    finished = tangram("simulate", path)
    assert finished.code in (0, 2), finished.err
    assert bool(finished.err) == (finished.code == 2)


def test_the_small_cluster_of_these_tests_is_sound(folder: Path) -> None:
    """The files that are damaged above are good ones."""
    assert load_cluster(str(folder / "lab.yaml")).gpus == 12
    assert load_model(str(folder / "tiny.yaml")).layers == 4
    assert tangram("simulate", folder / "plan.json").code == 0
