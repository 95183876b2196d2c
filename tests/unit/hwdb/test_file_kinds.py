"""What is given in the wrong place is named for what it is."""

import json
import shlex
from pathlib import Path

import pytest

from tangram_sim.datafiles import shipped
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tests.commands import files, tangram

CLUSTER = str(shipped("hwdb") / "clusters" / "azure-c1.yaml")
MODEL = str(shipped("hwdb") / "models" / "llama3-8b.json")


@pytest.mark.parametrize("given", ["llama3-8b", MODEL])
def test_a_model_for_a_cluster(given: str) -> None:
    with pytest.raises(BadInputError, match=r"model.*, given for a cluster.*MODEL comes first"):
        load_cluster(given, Hwdb.load())


@pytest.mark.parametrize("given", ["azure-c1", "H100x8:3", "H100x8:3,A40x8:2", CLUSTER])
def test_a_cluster_for_a_model(given: str) -> None:
    with pytest.raises(BadInputError, match="a cluster, given for a model"):
        load_model(given)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"pipelines": [], "step_s": 1.0, "cluster": {}}', "is a plan"),
        ('{"economics": {"pue": 1.2}}', "is a price file"),
        ('{"nodes": {"DGX-H100": {"rent_usd_per_hour": 3}}}', "is a price file"),
        ('{"offers": []}', "is a catalogue"),
    ],
)
def test_other_files_for_a_cluster(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(BadInputError, match=words) as raised:
        load_cluster(str(tmp_path / "x.json"), Hwdb.load())
    assert "MODEL comes first" not in str(raised.value)


def test_a_price_file_for_a_model(tmp_path: Path) -> None:
    """It has `nodes`, as clusters do, but by name; Python callers read an argument, the shell an option."""
    path = tmp_path / "prices.json"
    path.write_text('{"nodes": {"DGX-H100": {"rent_usd_per_hour": 3}}}')
    with pytest.raises(BadInputError, match=r"is a price file \(`prices=`\), given for a model$"):
        load_model(str(path))
    found = tangram("plan", str(path), "azure-c1")
    assert found.code == 2
    assert "is a price file (--prices), given for a model" in found.err


def test_slow_parts_for_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "slow.json").write_text('{"slow": []}')
    with pytest.raises(BadInputError, match=r"slow parts \(`slow=`\), given for a cluster$"):
        load_cluster(str(tmp_path / "slow.json"), Hwdb.load())


def test_a_plan_for_a_model(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"pipelines": [], "stages": []}')
    with pytest.raises(BadInputError, match="is a plan"):
        load_model(str(tmp_path / "plan.json"))


def test_commas_join_nodes_as_plus_does() -> None:
    hwdb = Hwdb.load()
    assert load_cluster("H100x8:3,A40x8:2", hwdb) == load_cluster("H100x8:3+A40x8:2", hwdb)


def test_depth_is_never_taken(tmp_path: Path) -> None:
    """What a family's usual member has says nothing about how deep this one is."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 1024}))
    with pytest.raises(BadInputError, match=r"num_hidden_layers is missing; expected the number of layers"):
        load_model(str(tmp_path))


def test_an_export_without_a_format_lists_the_formats() -> None:
    found = tangram("export", "plan.json")
    assert found.code == 2
    assert "--to is missing: give one of rankmap, torchrun, megatron" in found.err


def test_slow_parts_that_are_not_there_are_refused_before_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tangram_sim.studies.tried.plan", lambda *_, **__: pytest.fail("planned first"))
    found = tangram("plan", "llama3-8b", "azure-c1", "--slow", "foo=1.5")
    assert found.code == 2
    assert "unknown part of the cluster 'foo'" in found.err


def test_a_plan_stands_for_its_model_and_its_cluster(tmp_path: Path) -> None:
    """As the advice of a refused export says, pasted; a plan that was cut is named for what it is."""
    files(tmp_path)
    path = tmp_path / "my plan.json"
    given = (
        tmp_path / "tiny.yaml",
        "T4x4:1+V100x4:1",
        "--tp",
        4,
        "--pp",
        2,
        "--global-batch",
        8,
        "--dtype",
        "fp16",
    )
    assert tangram("estimate", *given, "--schedule", "gpipe", "-o", path).code == 0
    assert load_model(str(path)) == load_model(str(tmp_path / "tiny.yaml"))
    assert load_cluster(str(path)).groups == load_cluster("T4x4:1+V100x4:1").groups
    refused = tangram("export", path, "--to", "megatron")
    assert refused.code == 2
    command = refused.err.partition("`tangram ")[2].partition("`")[0] if "`" in refused.err else refused.err
    words = shlex.split(command)
    assert words[:3] == ["plan", str(path), str(path)] and words[-2:] == ["--for", "megatron"]
    assert tangram("estimate", *words[1:-2], "--tp", 4, "--pp", 2, "--dtype", "fp16").code == 0
    document = json.loads(path.read_text())
    path.write_text(json.dumps({key: document[key] for key in ("pipelines", "step_s", "stages")}))
    with pytest.raises(BadInputError, match="is a plan"):
        load_model(str(path))


@pytest.mark.parametrize("keys", [{"pipelines": [], "step_s": 1.0}, {}])
@pytest.mark.parametrize("version", [99, "2.0", True, None])
def test_a_plan_of_another_schema_is_refused_by_its_version(
    tmp_path: Path, keys: dict[str, object], version: object
) -> None:
    """Whatever its keys are called there: never read as a model or a cluster."""
    (tmp_path / "plan.json").write_text(
        json.dumps({"schema_version": version, "model": {"name": "x"}, "cluster": {"nodes": []}, **keys})
    )
    words = rf"plan\.json: plan schema version '{version}', this tangram-sim reads 1\.x"
    with pytest.raises(BadInputError, match=words):
        load_model(str(tmp_path / "plan.json"))
    with pytest.raises(BadInputError, match=words):
        load_cluster(str(tmp_path / "plan.json"), Hwdb.load())
