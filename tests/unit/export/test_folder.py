"""One command starts an exported folder, and one file says what is missing: run by a real shell and stubs."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tangram_sim.export import launch
from tangram_sim.export.formats import export
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.planners.uniform.layouts import Uniform, uniform_plan
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan

pytestmark = pytest.mark.skipif(shutil.which("sh") is None, reason="no shell here")
GIVEN = {
    "MEGATRON": "/opt/megatron lm",
    "FLAGSCALE": "/opt/flagscale",
    "TORCHTITAN": "/opt/torchtitan",
    "PROGRAM": "train.py",
    "DATA": "/data/text",
    "TOKENIZER": "meta-llama/Llama-3.1-8B",
    "STEPS": "100",
    "CHECKPOINTS": "/checkpoints",
    "MASTER_ADDR": "head",
    "SKIP_GPU_CHECK": "1",
}
HWDB = Hwdb.load()


def plan_for(to: str) -> Plan:
    """Two stages, each on nodes of its own kind; without tensor parallelism for DeepSpeed."""
    zero = 3 if to == "torchtitan" else 1
    tp = 1 if to in ("deepspeed", "torchrun") else 2
    wanted = Uniform(tp=tp, pp=2, dp=16 // tp, zero_stage=zero, sequence_parallel=tp > 1)
    cluster = load_cluster("H100-SXM5-80GBx8:2+A100-SXM4-80GBx8:2", HWDB)
    return uniform_plan(load_model("llama3-8b"), cluster, Job(256, 4096, "bf16"), wanted)


def written(plan: Plan, to: str, folder: Path, version: str = "") -> None:
    for name, text in export(plan, to, version=version).files.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(text)
    stubs = folder / "bin"
    stubs.mkdir()
    for name in ("torchrun", "sbatch", "srun", "nvidia-smi"):
        (stubs / name).write_text('#!/bin/sh\nprintf "%s\\n" "$CUDA_VISIBLE_DEVICES" "$@"\n')
        (stubs / name).chmod(0o755)
    (stubs / "scontrol").write_text("#!/bin/sh\necho first\necho second\n")
    (stubs / "scontrol").chmod(0o755)


def run(folder: Path, *command: str, **given: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(
        command, cwd=folder, env={"PATH": path, **given}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("to", "version", "program"),
    [
        ("megatron", "", "/opt/megatron lm/pretrain_gpt.py"),
        ("torchtitan", "0.2.2", "/opt/torchtitan/train.py"),
        ("torchtitan", "0.3.0", "/opt/torchtitan/train.py"),
        ("deepspeed", "", "train.py"),
        ("flagscale", "", "/opt/flagscale/flagscale/train/train_gpt.py"),
        ("torchrun", "", "train.py"),
    ],
)
def test_one_command_starts_a_node(to: str, version: str, program: str, tmp_path: Path) -> None:
    written(plan_for(to), to, tmp_path, version)
    started = run(tmp_path, "sh", "launch.sh", "node", "3", **GIVEN)
    assert started.returncode == 0, started.stderr
    words = started.stdout.splitlines()
    assert words[0] == "0,1,2,3,4,5,6,7"
    assert "--node-rank=3" in words and "--master-addr=head" in words and program in words
    if to != "torchrun":
        assert "100" in words and "/checkpoints" in words
    if to in ("megatron", "flagscale"):  # Megatron asserts it wherever there is `--save`
        assert words[words.index("--save-interval") + 1] == "1000"
    if to == "megatron":
        assert "--pipeline-model-parallel-size" in words and "--data-path" in words
    if to == "torchtitan":
        told = (
            ["--job.config_file", "torchtitan.toml"] if version == "0.2.2" else ["--module", "tangram_recipe"]
        )
        assert words[words.index(told[0]) :][:2] == told
    if to == "flagscale":
        numbers = words[words.index("--hetero-process-meshes") + 1 :][:5]
        assert numbers == ["2", "1", "1", "8", "2"]


@pytest.mark.parametrize("missing", ["MEGATRON", "DATA", "TOKENIZER", "STEPS", "CHECKPOINTS"])
def test_what_is_not_given_is_named_with_the_one_file_that_asks_for_it(missing: str, tmp_path: Path) -> None:
    written(plan_for("megatron"), "megatron", tmp_path)
    given = {name: value for name, value in GIVEN.items() if name != missing}
    started = run(tmp_path, "sh", "launch.sh", "0", **given)
    assert started.returncode == 2
    assert started.stderr == f"settings.sh: give {missing}\n"
    settings = (tmp_path / "settings.sh").read_text()
    assert f': "${{{missing}:=}}"' in settings
    (tmp_path / "settings.sh").write_text(settings.replace(f"{missing}:=", f"{missing}:=here"))
    assert run(tmp_path, "sh", "launch.sh", "0", **given).returncode == 0


@pytest.mark.parametrize(("memory", "code"), [("81920", 0), ("81559", 0), ("40960", 3), ("[N/A]", 0)])
def test_a_smaller_card_of_the_same_kind_is_another_node(memory: str, code: int, tmp_path: Path) -> None:
    written(plan_for("megatron"), "megatron", tmp_path)
    (tmp_path / "bin" / "nvidia-smi").write_text(
        f'#!/bin/sh\nfor one in 0 1 2 3 4 5 6 7; do echo "NVIDIA A100-SXM4, {memory}"; done\n'
    )
    started = run(tmp_path, "sh", "launch.sh", "3", **(GIVEN | {"SKIP_GPU_CHECK": ""}))
    assert started.returncode == code, started.stderr
    assert ("with 68664 MiB" in started.stderr) == (code == 3)


def test_a_node_that_the_plan_leaves_out_starts_nothing(tmp_path: Path) -> None:
    written(plan_for("megatron"), "megatron", tmp_path)
    started = run(tmp_path, "sh", "launch.sh", "node", "9", **GIVEN)
    assert (started.returncode, started.stdout) == (2, "")
    assert "the plan runs nothing on it" in started.stderr


def test_slurm_asks_for_each_kind_of_node_and_starts_each_planned_node(tmp_path: Path) -> None:
    written(plan_for("megatron"), "megatron", tmp_path)
    asked = run(tmp_path, "bash", "slurm.sh", **GIVEN, SLURM_G0="--partition=h100")
    assert asked.returncode == 0, asked.stderr
    words = asked.stdout.splitlines()
    assert words.count("--nodes=2") == 2 and words.count(":") == 1 and "--partition=h100" in words
    inside = {"SLURM_JOB_ID": "1", "SLURM_SUBMIT_DIR": str(tmp_path)}
    inside |= {"SLURM_JOB_NODELIST_HET_GROUP_0": "h[1-2]"}
    started = run(tmp_path, "bash", "slurm.sh", **GIVEN, **inside)
    assert started.returncode == 0, started.stderr
    assert "--het-group=0" in started.stdout and "--het-group=1" in started.stdout
    picks = [line for line in started.stdout.splitlines() if "SLURM_NODEID" in line]
    picked = [run(tmp_path, "sh", "-c", pick, **GIVEN, SLURM_NODEID="1").stdout for pick in picks]
    ranks = sorted(line for text in picked for line in text.splitlines() if "node-rank" in line)
    assert ranks == ["--node-rank=1", "--node-rank=3"]


def test_a_job_of_kubernetes_runs_one_pod_per_planned_node(tmp_path: Path) -> None:
    plan = plan_for("torchtitan")
    text = export(plan, "torchtitan").files["kubernetes.yaml"]
    service, *jobs = yaml.safe_load_all(text)
    assert service["spec"]["clusterIP"] == "None"
    assert [job["spec"]["completions"] for job in jobs] == [2, 2]
    pods = [job["spec"]["template"]["spec"] for job in jobs]
    assert [pod["nodeSelector"]["nvidia.com/gpu.product"] for pod in pods] == [
        "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB",
    ]  # fmt: skip
    assert {pod["containers"][0]["env"][0]["value"] for pod in pods} == {"tangram-g0-0.tangram"}
    assert all(pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8} for pod in pods)


@pytest.mark.parametrize("version", ["0.2.2", "0.3.0"])
def test_a_pod_has_every_file_where_the_folder_has_it(version: str, tmp_path: Path) -> None:
    """Also those of a subfolder: the ConfigMap is made as the manifest says, the pod's command run on it."""
    written(plan_for("torchtitan"), "torchtitan", tmp_path, version)
    text = (tmp_path / "kubernetes.yaml").read_text()
    given = [
        word.partition("=")[2] for word in text.splitlines()[0].split() if word.startswith("--from-file")
    ]
    assert given[0] == "."
    mounted, work = tmp_path / "mounted", tmp_path / "work"
    mounted.mkdir()
    for key, _, name in (item.partition("=") for item in given[1:]):
        assert "/" not in key
        (mounted / key).write_bytes((tmp_path / name).read_bytes())
    names = [path for path in tmp_path.rglob("*") if path.is_file() and "bin" not in path.parts]
    for path in tmp_path.iterdir():
        if path.is_file():
            (mounted / path.name).write_bytes(path.read_bytes())
    _, job, _ = yaml.safe_load_all(text)
    command = job["spec"]["template"]["spec"]["containers"][0]["command"][2]
    command = command.partition(" && set --")[0].replace("/plan", str(mounted)).replace("/work", str(work))
    assert run(tmp_path, "sh", "-c", command).returncode == 0
    for path in names:
        if mounted not in path.parents:
            assert (work / path.relative_to(tmp_path)).read_bytes() == path.read_bytes()


def test_the_launch_script_still_reads_back(tmp_path: Path) -> None:
    plan = plan_for("megatron")
    ranks = launch.read(export(plan, "megatron").files["launch.sh"], plan.cluster)
    assert ranks == tuple(rank for stage in plan.pipelines[0].stages for rank in stage.ranks)
