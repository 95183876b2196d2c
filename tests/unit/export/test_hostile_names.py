"""No name becomes a command: what breaks lines is refused where it is read, the rest is quoted where written.

Scripts are run by a real shell in which every program that they may start is a stub that prints how it was
called. A name that were executed would leave the file `ran` behind.
"""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tangram_sim.clusters import Cluster, Gpu, Link, NodeGroup
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.export.formats import FORMATS, export
from tangram_sim.export.quoting import comment, label
from tangram_sim.export.service.formats import FORMATS as SERVICE_FORMATS
from tangram_sim.export.service.formats import export_service
from tangram_sim.export.service.groups import service_of
from tangram_sim.hwdb import Hwdb, cluster_to_dict
from tangram_sim.hwdb.cluster_file import cluster_from_dict
from tangram_sim.layouts import Layout
from tangram_sim.training.plan import Plan
from tests.commands import tangram
from tests.unit.export.plans import HWDB, NODE, two_stages

BREAKS = {
    "line feed": "A100\ntouch ran #",
    "carriage return": "A100\rtouch ran",
    "next line": "A100\x85touch ran",
    "line separator": "A100\u2028touch ran",
    "paragraph separator": "A100\u2029touch ran",
    "NUL": "A100\0touch ran",
    "escape": "A100\x1b[31m",
    "turned direction": "A100\u202etouch",
}
PRINTABLE = {
    "substitution": "$(touch ran)",
    "backquotes": "`touch ran`",
    "semicolon": "A100; touch ran",
    "quote": "A100'; touch ran; '",
    "double quote": 'A100"; touch ran; "',
    "end of a case": ") #; touch ran ;; *) touch ran #",
    "bars": "a | b | c d e",
    "glob": "* ? [a]",
    "template": "{file} {0} %s",
}
STUBS = (
    "sbatch",
    "srun",
    "scontrol",
    "torchrun",
    "vllm",
    "python3",
    "python",
    "trtllm-serve",
    "nvidia-smi",
    "deepspeed",
)


def run_in(folder: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The script, run with nothing on its path but stubs and a shell's own tools."""
    for name in STUBS:
        (folder / name).write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n')
        (folder / name).chmod(0o755)
    (folder / "launch.sh").write_text(script)
    return subprocess.run(
        ["sh", "launch.sh", *words],
        cwd=folder,
        env={"PATH": f"{folder}:/usr/bin:/bin", "MASTER_ADDR": "head", "SKIP_GPU_CHECK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def plan_named(name: str) -> Plan:
    """A plan whose GPU kind, cluster and model all have this name."""
    plan = two_stages(Layout(dp=2), Layout(dp=2))
    node = replace(NODE, gpu=replace(NODE.gpu, name=name))
    groups = tuple(NodeGroup(group.name, group.count, node) for group in plan.cluster.groups)
    return replace(plan, cluster=Cluster(name, groups), model=replace(plan.model, name=name))


@pytest.mark.skipif(shutil.which("sh") is None, reason="no shell here")
@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("kind", PRINTABLE)
def test_a_training_export_runs_no_name(to: str, kind: str, tmp_path: Path) -> None:
    try:
        files = export(plan_named(PRINTABLE[kind]), to).files
    except TangramError:
        return  # the format does not express the plan
    for name, text in files.items():
        if name.endswith(".json"):
            json.loads(text)
    if "launch.sh" in files:
        found = run_in(tmp_path, files["launch.sh"], "0", "train.py", "--lr", "1")
        assert found.returncode == 0, found.stderr
        assert found.stdout.split()[-2:] == ["--lr", "1"]
        assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(shutil.which("sh") is None, reason="no shell here")
def test_the_script_hands_megatron_its_arguments_word_by_word(tmp_path: Path) -> None:
    """Brackets, bars and stars of layouts are patterns and pipes to a shell: quoted, they are words."""
    plan = two_stages(Layout(tp=2), Layout(tp=2))
    found = export(plan, "megatron").files
    started = run_in(tmp_path, found["launch.sh"], "0", "pretrain_gpt.py", "--lr", "1").stdout.splitlines()
    assert started[started.index("pretrain_gpt.py") + 1 : -2] == found["megatron.args"].split()
    assert started[-2:] == ["--lr", "1"]
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" in found["launch.sh"]


@pytest.mark.skipif(shutil.which("sh") is None, reason="no shell here")
@pytest.mark.parametrize("to", SERVICE_FORMATS)
@pytest.mark.parametrize("kind", PRINTABLE)
def test_a_serving_export_runs_no_name(to: str, kind: str, tmp_path: Path) -> None:
    name = PRINTABLE[kind]
    fleet: dict[str, Any] = {
        "model": "llama3-8b",
        "engine": "vllm" if to == "kubernetes" else to,
        "replicas": [{"name": name, "gpu": "H100-SXM5-80GB", "tp": 2}],
    }
    found = export_service(service_of(fleet, Hwdb.load(())), to, {"llama3-8b": name}).files
    if to == "kubernetes":
        deployed = list(yaml.safe_load_all(found["kubernetes.yaml"]))
        assert deployed[0]["metadata"]["annotations"]["tangram-sim/configuration"] == name
        return
    started = run_in(tmp_path, found["launch.sh"], "0")
    assert started.returncode == 0, started.stderr
    assert name in started.stdout.splitlines()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", BREAKS)
def test_nothing_that_breaks_a_line_is_a_name(kind: str, tmp_path: Path) -> None:
    """In nouns, hardware tables, cluster files, serving fleets and plan files; no traceback, and a reason."""
    name = BREAKS[kind]
    with pytest.raises(BadInputError, match="printable text on one line"):
        replace(NODE.gpu, name=name)
    with pytest.raises(BadInputError, match="printable text on one line"):
        Link(name, "pcie", 1e9, 0.0)
    with pytest.raises(BadInputError, match="printable text on one line"):
        Cluster(name, (NodeGroup("g0", 1, NODE),))
    with pytest.raises(BadInputError, match="model: "):
        plan_named("fine").model.__class__(name, "llama", 512, 8000, plan_named("fine").model.blocks)
    with pytest.raises(BadInputError):
        service_of({"model": "llama3-8b", "replicas": [{"name": name, "gpu": "L4"}]}, HWDB)
    written = cluster_to_dict(Cluster("lab", (NodeGroup("g0", 1, NODE),)))
    gpu = next(iter(written["hardware"]["gpus"]))
    asked = json.loads(json.dumps(written).replace(json.dumps(gpu)[1:-1], json.dumps(name)[1:-1]))
    with pytest.raises(BadInputError):
        cluster_from_dict(asked, HWDB, "lab.yaml")
    with pytest.raises(BadInputError):
        cluster_from_dict({**written, "name": name}, HWDB, "lab.yaml")


@pytest.mark.parametrize("kind", ("line feed", "escape", "line separator"))
def test_a_hardware_row_with_such_a_name_is_refused_with_its_place(kind: str, tmp_path: Path) -> None:
    source = (Path(str(Hwdb.load().folders[0])) / "gpus.csv").read_text(encoding="utf-8").splitlines()
    row = next(line for line in source if line.startswith("A100-SXM4-80GB,"))
    rest = row.split(",", 1)[1]
    (tmp_path / "gpus.csv").write_text(f'{source[0]}\n"{BREAKS[kind]}",{rest}\n', encoding="utf-8")
    with pytest.raises(BadInputError, match=r"gpus.csv, line \d+, column name: .* has "):
        Hwdb.load([tmp_path])


@pytest.mark.parametrize("verb", (["simulate"], ["export", "--to", "megatron"], ["explain"]))
def test_a_plan_file_with_such_a_name_is_refused(verb: list[str], tmp_path: Path) -> None:
    planned = tmp_path / "plan.json"
    asked = ["gpt3-125m", "T4x4:1", "--global-batch", "8", "--seq", "512", "--dp", "4", "-o", planned]
    tangram("estimate", *asked)
    text = planned.read_text(encoding="utf-8")
    planned.write_text(text.replace('"T4"', json.dumps("T4\ntouch ran #")), encoding="utf-8")
    found = tangram(verb[0], planned, *verb[1:])
    assert found.code == 2
    assert "line feed" in found.err
    assert "Traceback" not in found.err


def test_a_name_is_no_option() -> None:
    with pytest.raises(BadInputError, match="take for an option"):
        replace(plan_named("fine").model, name="--trust-remote-code")


def test_comments_are_one_line_and_labels_are_valid() -> None:
    for name in (*BREAKS.values(), *PRINTABLE.values(), "x" * 200):
        assert "\n" not in comment(name)
        assert set(comment(name)) <= set(
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 ._+:/()|,-"
        )
        assert len(label(name)) <= 63


def test_a_gpu_of_a_plan_names_what_it_refuses() -> None:
    gpu: Gpu = NODE.gpu
    with pytest.raises(BadInputError, match="a line feed at character 2"):
        replace(gpu, name="a\nb")
