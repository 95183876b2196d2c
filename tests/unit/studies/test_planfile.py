"""Plan files: they replay to the last bit, re-price under other rows; contradictions in them are named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tangram_sim.clusters import Cluster
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.hwdb.model_section import model_from_dict, model_to_dict
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.studies import api
from tangram_sim.training.job import Job
from tests.commands import files, tangram

Document = dict[str, Any]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return files(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def plan_file(inputs: tuple[Path, Path]) -> Path:
    path = inputs[0].with_name("plan.json")
    assert tangram("plan", *inputs, "--global-batch", 16, "-o", path).code == 0
    return path


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_a_replay_says_what_the_plan_said(plan_file: Path, engine: str) -> None:
    planned = json.loads(plan_file.read_text())
    replayed = tangram("simulate", plan_file, "--engine", engine, "--json").json
    assert replayed["step_s"] == pytest.approx(planned["step_s"], rel=1e-12 if engine == "fast" else 1e-9)
    of_the_search = ("bf16, which leaves out T4;", "g0 (T4) left out: no bf16 units")
    assert (
        replayed["notes"] == [item for item in planned["notes"] if not item.startswith(of_the_search)] == []
    )
    for key in ("hwdb_hash", "hwdb_rows", "pipelines", "cluster", "model", "job", "lower_bound_step_s"):
        assert replayed[key] == planned[key]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "interleaved", "zb-v", "dualpipe-v"])
def test_estimates_of_every_schedule_replay(inputs: tuple[Path, Path], tmp_path: Path, schedule: str) -> None:
    path = tmp_path / "plan.json"
    more = ("--schedule", schedule, "--vpp", 2 if schedule == "interleaved" else 1)
    assert tangram("estimate", *inputs, "--pp", 2, "--tp", 2, "--dp", 2, *more, "-o", path).code == 0
    replayed = tangram("simulate", path, "--json").json
    assert replayed["step_s"] == json.loads(path.read_text())["step_s"]
    assert tangram("simulate", path, "--engine", "reference", "--json").json["step_s"] == pytest.approx(
        replayed["step_s"], rel=1e-9
    )


@pytest.mark.parametrize("exclude", ["g0", "g1"])
def test_a_plan_that_leaves_islands_out_replays_without_a_note(
    inputs: tuple[Path, Path], tmp_path: Path, exclude: str
) -> None:
    path = tmp_path / "plan.json"
    assert tangram("plan", *inputs, "--global-batch", 16, "--exclude", exclude, "-o", path).code == 0
    planned, replayed = json.loads(path.read_text()), tangram("simulate", path, "--json").json
    assert (replayed["step_s"], replayed["hwdb_hash"]) == (planned["step_s"], planned["hwdb_hash"])
    assert replayed["lower_bound_step_s"] == planned["lower_bound_step_s"]


@pytest.mark.parametrize(
    "name", ["azure-c1", "dgx-a100-h100", "consumer-3090-4090", "gb200-nvl72-h100", "p3-p4d-p5"]
)
def test_fingerprints_agree_on_shipped_clusters(name: str) -> None:
    """Node rows, bridges and NICs count as read, whether they came by name or out of a plan file."""
    database = Hwdb.load()
    layout, job = Uniform(dp=4, pp=2), Job(global_batch=8, dtype="fp16")
    made = api.estimate(load_model("bert-base"), load_cluster(name, database), job, layout, hwdb=database)
    assert api.simulate(made.document).document.hwdb_hash == made.document.hwdb_hash


def test_rows_of_an_overlay_reprice_the_decisions_and_both_steps_are_shown(
    plan_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "gpus.csv").write_text("name,fp16_tflops,bf16_tflops\nA100-SXM4-40GB,100,100\n")
    old = json.loads(plan_file.read_text())
    new = tangram("simulate", plan_file, "--hwdb", tmp_path, "--json").json
    assert new["step_s"] > old["step_s"] * 1.1
    assert new["pipelines"] == old["pipelines"]
    assert new["hwdb_hash"] != old["hwdb_hash"]
    note = " ".join(new["notes"])
    assert old["hwdb_hash"] in note
    assert new["hwdb_hash"] in note


def test_a_row_of_an_overlay_that_the_plan_does_not_use_changes_nothing(
    plan_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "gpus.csv").write_text("name,memory_gb\nH100-SXM5-80GB,94\n")
    new = tangram("simulate", plan_file, "--hwdb", tmp_path, "--json").json
    assert new["notes"] == []
    assert new["step_s"] == json.loads(plan_file.read_text())["step_s"]


def test_node_rows_of_an_overlay_reprice_the_network(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    cluster, path, own = tmp_path / "two.yaml", tmp_path / "plan.json", tmp_path / "own"
    own.mkdir()
    cluster.write_text("nodes: [{count: 2, node: p4d.24xlarge}]\n")
    assert tangram("estimate", inputs[0], cluster, "--dp", 16, "-o", path).code == 0
    (own / "nodes.csv").write_text("name,nic_gbps\np4d.24xlarge,40\n")
    assert (
        tangram("simulate", path, "--hwdb", own, "--json").json["step_s"]
        > json.loads(path.read_text())["step_s"]
    )
    (own / "nodes.csv").write_text("name,gpus\np4d.24xlarge,4\n")
    finished = tangram("simulate", path, "--hwdb", own)
    assert finished.code == 2
    assert "plan again" in finished.err


def test_hardware_that_is_gone_is_an_error(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    """A plan made with a user's own GPU needs that row again; the message says which and how."""
    own, cluster, path = tmp_path / "own", tmp_path / "dream.yaml", tmp_path / "plan.json"
    own.mkdir()
    (own / "gpus.csv").write_text(
        "name,vendor,architecture,form,year,memory_gb,memory_gb_per_s,fp16_tflops,bf16_tflops,link,link_gb_per_s,source\n"
        "Dream-1,nobody,Dream,SXM,2030,500,9000,5000,5000,none,0,a wish\n"
    )
    cluster.write_text("nodes: [{count: 1, gpu: Dream-1, gpus: 4, intra_link: NVLink3, nic_gbps: 100}]\n")
    made = tangram("plan", inputs[0], cluster, "--hwdb", own, "-o", path)
    assert made.code == 0, made.err
    assert tangram("simulate", path, "--hwdb", own).code == 0
    for verb in ("simulate", "explain"):
        finished = tangram(verb, path)
        assert finished.code == 2
        assert "Dream-1" in finished.err
        assert "--hwdb" in finished.err


def _at(document: Document, path: str) -> tuple[Any, Any]:
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
    for part in parents:
        document = document[part]
    return document, last


def _set(path: str, value: object) -> Callable[[Document], None]:
    def edit(document: Document) -> None:
        parent, key = _at(document, path)
        parent[key] = value

    return edit


def _swap_stages(document: Document) -> None:
    document["pipelines"][0]["stages"].reverse()


def _two_chunks(document: Document) -> None:
    """A sound interleaving of two chunks per stage, under a schedule that knows none."""
    stages = document["pipelines"][0]["stages"][:2]
    document["pipelines"][0]["stages"] = stages
    for number, stage in enumerate(stages):
        stage["chunks"], stage["head"] = [[number, number + 1], [number + 2, number + 3]], number == 1


_STAGE = "pipelines.0.stages.0"
_PART = f"{_STAGE}.parts.0"
EDITS: dict[str, tuple[Callable[[Document], None], str]] = {
    "major version": (_set("schema_version", "2.0"), "schema version '2.0'"),
    "version of another kind": (_set("schema_version", None), "schema version 'None'"),
    "unknown key": (_set("colour", "red"), "colour"),
    "unknown key below": (_set(f"{_PART}.colour", "red"), "colour"),
    "rank out of the cluster": (_set(f"{_PART}.ranks.0", 999), "rank 999"),
    "negative rank": (_set(f"{_PART}.ranks.0", -1), "rank -1"),
    "rank twice": (_set(f"{_PART}.ranks.1", 0), "used twice"),
    "rank missing": (_set(f"{_PART}.ranks", [0]), "1 ranks are given"),
    "no ranks": (_set(f"{_PART}.ranks", []), "ranks"),
    "layers missing": (_set(f"{_STAGE}.chunks.0.1", 1), "in forward order"),
    "layers backwards": (_set(f"{_STAGE}.chunks.0", [2, 0]), "in forward order"),
    "two chunks": (_set(f"{_STAGE}.chunks", [[0, 1], [1, 2]]), "in forward order"),
    "chunks under 1f1b": (_two_chunks, "chunks per stage"),
    "stages swapped": (_swap_stages, "in forward order"),
    "no embedding": (_set(f"{_STAGE}.embedding", False), "embedding"),
    "head twice": (_set(f"{_STAGE}.head", True), "one stage each"),
    "tp": (_set(f"{_PART}.layouts.0.tp", 3), "layout"),
    "dp": (_set(f"{_PART}.layouts.0.dp", 0), "greater than or equal to 1"),
    "ep": (_set(f"{_PART}.layouts.0.ep", 2), "ep=2"),
    "zero": (_set(f"{_PART}.layouts.0.zero_stage", 4), "less than or equal to 3"),
    "recompute": (_set(f"{_PART}.layouts.0.recompute", "most"), "unknown recompute kind"),
    "layout elsewhere": (_set(f"{_PART}.layouts.0.layers", [0, 1]), "covers layers"),
    "microbatches": (_set("pipelines.0.microbatches", 3), "global_batch is 8"),
    "huge": (_set("job.global_batch", 10**30), "less than or equal to"),
    "no pipelines": (_set("pipelines", []), "0 pipelines"),
    "no stages": (_set("pipelines.0.stages", []), "stages"),
    "shares": (_set(f"{_PART}.sequences_per_microbatch", 1), "sequences of a microbatch"),
    "dtype": (_set("job.dtype", "bf15"), "bf15"),
    "dtype without units": (_set("job.dtype", "bf16"), "no bf16 units"),
    "schedule": (_set("job.schedule", "interleaved"), "chunks per stage"),
    "unknown GPU": (_set("cluster.nodes.0.gpu", "T5"), "T5"),
    "figures gone": (_set("cluster.hardware", {"gpus": {}, "links": {}}), ""),
    "row gone": (_set("hwdb_rows", ["gpus/T5"]), "T5"),
    "fewer nodes": (_set("cluster.nodes.0.count", 1), "rank"),
    "cluster is no mapping": (_set("cluster", {"nodes": 3}), "nodes"),
    "hidden": (_set("model.hidden", 0), "hidden"),
    "hidden as text": (_set("model.hidden", "512"), "hidden"),
    "heads": (_set("model.blocks.0.block.attention.heads", 0), "heads"),
    "count": (_set("model.blocks.0.count", 10**9), "counts"),
    "model key": (_set("model.colour", 1), "colour"),
    "block key": (_set("model.blocks.0.block.attention.colour", 1), "colour"),
    "no blocks": (_set("model.blocks", []), "blocks"),
    "not a number": (_set("step_s", float("nan")), "step_s"),
}


@pytest.fixture(scope="module")
def document(inputs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    options = ("--pp", 3, "--dp", 4, "--micro-batch", 1, "--layers", "2,1,1", "--global-batch", 8)
    assert tangram("estimate", *inputs, *options, "-o", path).code == 0
    return path.read_text()


@pytest.mark.parametrize("name", EDITS)
def test_edited_files(document: str, tmp_path: Path, name: str) -> None:
    """An edit that contradicts the rest is named; one that does not still gives a forecast."""
    edit, words = EDITS[name]
    edited = json.loads(document)
    edit(edited)
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(edited))
    finished = tangram("simulate", path, "-o", tmp_path / "out.json")
    if words:
        assert finished.code == 2, finished.out
        assert words in finished.err
        assert str(path) in finished.err or "units" in words
        assert finished.out == ""
        assert not (tmp_path / "out.json").exists()
    else:
        assert finished.code == 0, finished.err


def test_a_truncated_file_names_line_and_column(document: str, tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text(document[: len(document) // 2])
    finished = tangram("simulate", path)
    assert finished.code == 2
    assert f"{path}, line " in finished.err


def test_an_edited_prediction_is_noticed(document: str, tmp_path: Path) -> None:
    """The predictions in a file are not believed: they are made again and the difference is said."""
    edited = json.loads(document) | {"step_s": 1.0}
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(edited))
    found = tangram("simulate", path, "--json").json
    assert found["step_s"] == json.loads(document)["step_s"]
    assert "edited" in " ".join(found["notes"])


@pytest.mark.parametrize("name", ["gpt3-6.7b", "mixtral-8x7b", "deepseek-v3", "gemma3-27b", "bert-base"])
def test_models_survive_the_way_through_a_file(name: str) -> None:
    model = load_model(name)
    again = model_from_dict(json.loads(json.dumps(model_to_dict(model))), "file")
    assert again == model
    assert again.parameters == model.parameters


def test_the_python_form_takes_documents_and_files(plan_file: Path, inputs: tuple[Path, Path]) -> None:
    cluster: Cluster = load_cluster(str(inputs[1]))
    made = api.plan(load_model(str(inputs[0])), cluster, Job(global_batch=16))
    assert api.simulate(made.document).document.step_s == made.document.step_s
    assert api.simulate(plan_file).document.step_s == made.document.step_s
    with pytest.raises(TangramError, match="unknown engine 'slow'"):
        api.simulate(plan_file, engine="slow")


def test_what_a_config_leaves_out_survives_the_way_through_a_file(tmp_path: Path) -> None:
    """A plan of a config.json that names no key-value heads is read back as it was written."""
    given = {"model_type": "qwen2", "hidden_size": 512, "intermediate_size": 1024}
    given |= {"num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 1000, "num_key_value_heads": 8}
    (tmp_path / "config.json").write_text(json.dumps(given))
    model = load_model(str(tmp_path / "config.json"))
    assert model.defaults
    again = model_from_dict(json.loads(json.dumps(model_to_dict(model))), "plan")
    assert (again, again.defaults) == (model, model.defaults)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda model: model["blocks"][0].update(count=float("inf")), "model: malformed: cannot convert"),
        (lambda model: model.update(norm_epsilon=-1.0), "model.norm_epsilon: -1.0 given"),
        (lambda model: model.update(norm_epsilon=float("inf")), "model.norm_epsilon: inf given"),
    ],
)
def test_numbers_no_model_has_are_refused(spoil: Callable[[Document], None], said: str) -> None:
    model = model_to_dict(load_model("gpt3-125m"))
    spoil(model)
    with pytest.raises(BadInputError, match=said):
        model_from_dict(model, "plan.json")
