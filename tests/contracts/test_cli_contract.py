"""The command line that others script against: verbs, options and JSON keys keep their names and meaning."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tangram_sim.cli.schemas import NAMES, schema_text
from tests.commands import EXPERTS, Finished, files, tangram
from tests.places import ROOT

SCHEMAS = ROOT / "docs" / "schema"

_EFFICIENCY = "gpu,dtype,kernel,stack,parameter,value,sigma,n,source\n"

VERBS = {
    "plan": "--global-batch --seq --dtype --optimizer --parallelizer --schedule --objective -o --json "
    "--trace --fix --microbatch-per-rank --recompute --order --exclude --preset --top --candidates --hwdb",
    "estimate": "--tp --pp --dp --cp --ep --vpp --zero --micro-batch --recompute --layers --order "
    "--global-batch --seq --dtype --optimizer --schedule -o --json --trace --hwdb",
    "simulate": "--engine --trace --json --hwdb",
    "islands": "--json --hwdb",
    "explain": "--json --hwdb",
    "what-if": "--add --remove --tokens --prices --acquire --fleet --sensitivity --global-batch --seq "
    "--dtype --optimizer --schedule --sub-islands --cache --no-cache --jobs --dask -o --json --hwdb",
    "purchase": "--catalogue --budget --budget-per-hour --power-kw --max-nodes --rack-units --deadline "
    "--order-date --weights --cost --tokens --prices --acquire --fleet --sensitivity --cache "
    "--no-cache --jobs --dask -o --json --hwdb",
    "export": "--to -o --json --hwdb",
    "hw list": "--json --hwdb",
    "hw show": "--json --hwdb",
    "hw add-gpu": "--bf16-tflops --fp16-tflops --memory-gb --memory-gb-per-s --link --link-gb-per-s "
    "--architecture --source --efficiency -o --json --hwdb",
    "models list": "--json",
    "models show": "--json",
    "hw topology": "--full --json --hwdb",
    "collectives plan": "--op --bytes --algorithm --set --json --hwdb",
    "serve plan": "--id --fleet --workload --rate --budget --slo --objective --engine --time-limit -o "
    "--json --hwdb",
    "serve compare": "--fleet --workload --rate --budget --slo --objective --planners --json --hwdb",
    "serve simulate": "--trace --rate --isl --osl --mix --burstiness --router --spot --slo --on-loss "
    "--engine --requests-out --json --hwdb",
    "serve workload describe": "--rate --where --json",
    "calibrate run": "--step-s --plan --keep -o --json --hwdb",
    "calibrate collectives": "--gpu --link --nic --nic-gbps --op --json --hwdb",
    "validate collectives": "--left-out --json --hwdb",
}

PLAN_KEYS = {
    *("schema_version", "package_version", "hwdb_hash", "model", "cluster", "job", "feasible", "step_s"),
    *("tokens_per_s", "tokens_per_s_per_gpu", "mfu", "mfu_cluster", "schedule", "microbatch"),
    *("microbatch_per_rank", "microbatches", "gpus_used", "gpus_total", "lower_bound_step_s", "planning_s"),
    *("planning_cpu_s", "partial_plans", "pipelines", "stages", "peak_memory_bytes"),
}
STAGE_KEYS = {
    *("layers", "island", "gpu", "gpus", "nodes", "tp", "dp", "cp", "ep", "zero_stage", "recompute"),
    *("sequence_parallel", "forward_s", "backward_s", "gradient_sync_s", "peak_memory_bytes"),
    "memory_capacity_bytes",
}
PART_KEYS = {"island", "ranks", "sequences_per_microbatch", "layouts"}
LAYOUT_KEYS = {
    *("layers", "tp", "cp", "ep", "dp", "zero_stage", "recompute", "sequence_parallel"),
    *("fsep", "slices"),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return files(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def planned(inputs: tuple[Path, Path]) -> dict[str, Any]:
    asked = ("--json", "--global-batch", 16, "--dtype", "fp16", "--top", 3)  # on both kinds of GPUs
    finished = tangram("plan", *inputs, *asked)
    assert (finished.code, finished.err) == (0, "")
    found: dict[str, Any] = finished.json
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_the_contract_is_offered(verb: str) -> None:
    words = set(tangram(*verb.split(), "--help").out.replace(",", " ").split())
    assert set(VERBS[verb].split()) <= words


def test_defaults_of_the_contract(inputs: tuple[Path, Path]) -> None:
    job = tangram("estimate", *inputs, "--tp", 1, "--dp", 4, "--json").json["job"]
    assert (job["global_batch"], job["seq"], job["optimizer"]) == (128, 2048, "adamw")
    help_text = tangram("plan", "--help").out
    for default in ("128", "2048", "auto", "adamw", "grid", "1f1b", "time"):
        assert f"[default: {default}]" in " ".join(help_text.split()).replace("default:  ", "default: ")


def test_plan_json_has_the_promised_keys(planned: dict[str, Any]) -> None:
    assert planned.keys() >= PLAN_KEYS
    assert planned["partial_plans"].keys() >= {"asked", "redundant", "imbalanced", "infeasible", "dominated"}
    assert len(planned["alternatives"]) == 2
    for stage in planned["stages"]:
        assert stage.keys() >= STAGE_KEYS
    for pipeline in planned["pipelines"]:
        assert pipeline.keys() == {"microbatches", "microbatch", "stages"}
        for stage in pipeline["stages"]:
            assert stage.keys() == {"chunks", "embedding", "head", "parts"}
            for part in stage["parts"]:
                assert part.keys() == PART_KEYS
                assert all(layout.keys() == LAYOUT_KEYS for layout in part["layouts"])


def test_plan_json_means_what_its_names_say(planned: dict[str, Any]) -> None:
    """The derived figures follow from the others by their definitions."""
    job, pipeline = planned["job"], planned["pipelines"][0]
    assert planned["tokens_per_s"] == pytest.approx(job["global_batch"] * job["seq"] / planned["step_s"])
    assert planned["tokens_per_s_per_gpu"] == pytest.approx(planned["tokens_per_s"] / planned["gpus_used"])
    assert 0 < planned["mfu_cluster"] <= planned["mfu"] < 1
    assert planned["microbatches"] * planned["microbatch"] == job["global_batch"]
    assert planned["lower_bound_step_s"] <= planned["step_s"]
    assert planned["feasible"] is True
    assert planned["gpus_used"] == sum(stage["gpus"] for stage in planned["stages"])
    covered = [block for stage in planned["stages"] for block in range(*stage["layers"])]
    assert covered == list(range(4))
    for flat, stage in zip(planned["stages"], pipeline["stages"], strict=True):
        assert len(stage["parts"][0]["ranks"]) == flat["gpus"] == flat["tp"] * flat["cp"] * flat["dp"]
        assert flat["peak_memory_bytes"] <= flat["memory_capacity_bytes"]


def test_estimate_json_has_the_same_names(inputs: tuple[Path, Path], planned: dict[str, Any]) -> None:
    estimated = tangram("estimate", *inputs, "--pp", 3, "--json", "--micro-batch", 2).json
    assert estimated.keys() == planned.keys()
    assert estimated["peak_memory_bytes"] > 0
    assert (estimated["microbatch_per_rank"], estimated["microbatch"]) == (2, 8)
    assert [stage["microbatch_per_rank"] for stage in estimated["stages"]] == [2, 2, 2]


def test_islands_json(inputs: tuple[Path, Path]) -> None:
    found = tangram("islands", inputs[1], "--json").json
    assert [(i["name"], i["gpu"], i["nodes"], i["gpus"]) for i in found["islands"]] == [
        ("g0", "T4", 2, 8),
        ("g1", "A100-SXM4-40GB", 1, 4),
    ]
    assert all(island["reason"] for island in found["islands"])


def test_models_show_json(tmp_path: Path) -> None:
    found = tangram("models", "show", "gpt3-6.7b", "--json").json
    assert found["parameters"] == found["active_parameters"] == pytest.approx(6.7e9, rel=0.01)
    (tmp_path / "moe.yaml").write_text(EXPERTS)
    sparse = tangram("models", "show", tmp_path / "moe.yaml", "--json").json
    assert sparse["active_parameters"] < sparse["parameters"]


def test_hw_shows_every_kind_of_hardware_with_its_source() -> None:
    listed = tangram("hw", "list", "--json").json
    assert {"gpus", "links", "nodes", "clusters"} <= listed.keys()
    gpu = tangram("hw", "show", "A100-80GB", "--json").json
    assert (gpu["name"], gpu["table"]) == ("A100-SXM4-80GB", "gpus")
    assert gpu["source"]
    assert {row["parameter"] for row in gpu["efficiency"]} >= {"efficiency", "usable"}
    for name in ("NVLink3", "p4d.24xlarge", "azure-c1"):
        assert tangram("hw", "show", name).code == 0


def test_explain_json(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert tangram("plan", *inputs, "--global-batch", 16, "-o", plan).code == 0
    found = tangram("explain", plan, "--json").json
    assert sum(share["seconds"] for share in found["critical_path"]) == pytest.approx(found["step_s"])
    assert {"stage", "layout", "verdict", "pipeline", "part", "name"} == found["why_not"][0].keys()


@pytest.mark.parametrize("name", NAMES)
def test_committed_schemas_are_up_to_date(name: str) -> None:
    """`make docs` was run after the last change of a document."""
    assert (SCHEMAS / f"{name}.schema.json").read_text() == schema_text(name)


def test_outputs_validate_against_the_committed_schemas(
    inputs: tuple[Path, Path], planned: dict[str, Any], tmp_path: Path
) -> None:
    estimated = tangram("estimate", *inputs, "--dp", 4, "--json").json
    tangram("estimate", *inputs, "--dp", 4, "-o", tmp_path / "plan.json")
    written = json.loads((tmp_path / "plan.json").read_text())
    documents = {
        "plan": [planned, estimated, written],
        "islands": [tangram("islands", inputs[1], "--json").json],
        "model": [tangram("models", "show", name, "--json").json for name in ("mixtral-8x7b", "bert-base")],
    }
    for name, found in documents.items():
        schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
        for document in found:
            jsonschema.validate(document, schema)


def _hash(inputs: tuple[Path, Path], *more: object) -> str:
    found: Finished = tangram("estimate", *inputs, "--pp", 3, "--json", *more)
    assert found.code == 0, found.err
    digest: str = found.json["hwdb_hash"]
    return digest


@pytest.mark.parametrize(
    ("file", "rows", "changes"),
    [
        ("gpus.csv", "name,memory_gb_per_s\nT4,321", True),
        ("gpus.csv", "name,memory_gb_per_s\nH100-SXM5-80GB,3000", False),
        ("gpus.csv", "name,note\nT4,a corrected sentence", False),
        ("links.csv", "name,gb_per_s\nPCIe3x16,15", True),
        ("links.csv", "name,gb_per_s\nPCIe5x16,60", False),
        ("nodes.csv", "name,nic_gbps\np4d.24xlarge,399", False),
        (
            "efficiency/own.csv",
            _EFFICIENCY + "T4,*,gemm,generic,efficiency,0.41,0.01,0,own",
            True,
        ),
        (
            "efficiency/own.csv",
            _EFFICIENCY + "H200-SXM5-141GB,*,gemm,generic,efficiency,0.41,0.01,0,own",
            False,
        ),
    ],
)
def test_hwdb_hash_changes_iff_a_row_that_was_read_changes(
    inputs: tuple[Path, Path], tmp_path: Path, file: str, rows: str, changes: bool
) -> None:
    path = tmp_path / "own" / file
    path.parent.mkdir(parents=True)
    path.write_text(rows + "\n")
    assert (_hash(inputs) != _hash(inputs, "--hwdb", tmp_path / "own")) == changes


def test_hwdb_hash_sees_the_node_row_that_a_cluster_names(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    cluster = tmp_path / "p4d.yaml"
    cluster.write_text("nodes: [{count: 1, node: p4d.24xlarge}]\n")
    own = tmp_path / "own"
    own.mkdir()
    (own / "nodes.csv").write_text("name,nic_gbps\np4d.24xlarge,399\n")
    assert _hash((inputs[0], cluster)) != _hash((inputs[0], cluster), "--hwdb", own)
