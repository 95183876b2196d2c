"""Files next to a launch script so that one command starts a plan: settings, Slurm, Kubernetes.

`settings.sh` is the only file with values that the user must still set; the others read it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from tangram_sim.clusters import Cluster
from tangram_sim.export.launch import FILE as LAUNCH_FILE
from tangram_sim.export.launch import agents_of
from tangram_sim.export.quoting import comment, word, words
from tangram_sim.export.service.kubernetes import gpu_resource, node_selector
from tangram_sim.export.torchtitan import RECIPE, RECIPE_FILE

SETTINGS_FILE, SLURM_FILE, KUBERNETES_FILE = "settings.sh", "slurm.sh", "kubernetes.yaml"
_NAME = "tangram"  # of the jobs, the service and the ConfigMap


@dataclass(frozen=True, slots=True)
class Given:
    """A variable that the user sets: its name, a description, and a default."""

    name: str
    what: str
    usual: str = ""  # shell text; empty: it must be given


_TRAINING = (
    Given("TOKENIZER", "tokenizer of the model: its name on the hub, or a folder"),
    Given("STEPS", "optimizer steps to train"),
    Given("CHECKPOINTS", "folder for checkpoints that all nodes see"),
)
_RATE = Given("LEARNING_RATE", "largest learning rate", "3e-4")
_DATA = Given("DATA", "training data: prefix of the preprocessed .bin and .idx files")
_SAVE = Given("SAVE_INTERVAL", "optimizer steps between checkpoints", "1000")
_MEGATRON_LINE = (
    "--data-path $DATA --tokenizer-type HuggingFaceTokenizer --tokenizer-model $TOKENIZER "
    "--lr $LEARNING_RATE --train-iters $STEPS --save $CHECKPOINTS --load $CHECKPOINTS "
    "--save-interval $SAVE_INTERVAL"
)
_TITAN = Given(
    "TORCHTITAN",
    "folder of the package torchtitan",
    "$(python3 -c 'import importlib.util as u; "
    'print(*u.find_spec("torchtitan").submodule_search_locations)\')',
)
# By format and version ("" where there is one): what is given, and how the program is then called.
_PROGRAMS: dict[tuple[str, str], tuple[tuple[Given, ...], str]] = {
    ("megatron", ""): (
        (Given("MEGATRON", "folder of Megatron-LM, tag core_v0.16.1"), _DATA, *_TRAINING, _RATE, _SAVE),
        f"$MEGATRON/pretrain_gpt.py {_MEGATRON_LINE}",
    ),
    ("flagscale", ""): (
        (
            Given("FLAGSCALE", "folder of FlagScale 0.8.0, its backend unpatched"),
            _DATA,
            *_TRAINING,
            _RATE,
            _SAVE,
        ),
        f"$FLAGSCALE/flagscale/train/train_gpt.py {_MEGATRON_LINE}",
    ),
    ("torchtitan", "0.2.2"): (
        (
            _TITAN,
            Given("DATASET", "data set: its name in torchtitan", "c4"),
            Given("DATA", "data set: its folder or its name on the hub", "allenai/c4"),
            *_TRAINING,
            _RATE,
        ),
        "$TORCHTITAN/train.py --training.dataset $DATASET --training.dataset_path $DATA "
        "--model.hf_assets_path $TOKENIZER --training.steps $STEPS --optimizer.lr $LEARNING_RATE "
        "--checkpoint.enable --checkpoint.folder $CHECKPOINTS",
    ),
    ("torchtitan", "0.3.0"): (
        (_TITAN, *_TRAINING),
        "$TORCHTITAN/train.py --hf_assets_path $TOKENIZER --training.steps $STEPS --checkpoint.enable "
        "--checkpoint.folder $CHECKPOINTS",
    ),
    ("deepspeed", ""): (
        (Given("PROGRAM", "your program that builds the model and calls `deepspeed.initialize`"), *_TRAINING),
        "$PROGRAM --deepspeed_config ds_config.json --tokenizer $TOKENIZER --steps $STEPS "
        "--checkpoints $CHECKPOINTS",
    ),
    ("torchrun", ""): (
        (Given("PROGRAM", "your program; what each rank does is in rankmap.json"),),
        "$PROGRAM",
    ),
}

# Files of formats that lie in a folder of the folder: a ConfigMap has no folders, its keys stand for them.
_SUBFOLDERS = {("torchtitan", "0.3.0"): (RECIPE_FILE, f"{RECIPE}/__init__.py")}


def files(to: str, version: str, ranks: Sequence[int], cluster: Cluster, what: str) -> dict[str, str]:
    """Settings, Slurm script and Kubernetes manifest of a launch script for the cluster's GPUs `ranks`."""
    kinds = _groups(ranks, cluster)
    return {
        SETTINGS_FILE: _settings(to, version, kinds, what),
        SLURM_FILE: _slurm(kinds, cluster),
        KUBERNETES_FILE: _kubernetes(kinds, cluster, _SUBFOLDERS.get((to, version), ())),
    }


def _groups(ranks: Sequence[int], cluster: Cluster) -> list[tuple[int, list[int]]]:
    """(node group, its nodes that run agents), the group of agent 0 first."""
    used: dict[int, list[int]] = {}
    for agent in agents_of(ranks, cluster):
        nodes = used.setdefault(cluster.node_group[agent.node], [])
        if agent.node not in nodes:
            nodes.append(agent.node)
    return list(used.items())


def _settings(to: str, version: str, kinds: list[tuple[int, list[int]]], what: str) -> str:
    given, line = _PROGRAMS[to, version if (to, version) in _PROGRAMS else ""]
    lines = [
        "# What you must still give, and nothing else; every other file of this folder reads this one.",
        f"# {comment(what)}",
        "# Values of the environment win over those written here.",
    ]
    for item in given:
        lines += [f"# {item.what}", f': "${{{item.name}:={item.usual}}}"']
    lines += [
        "# Started by hand, not by Slurm or Kubernetes: export MASTER_ADDR, the host of agent 0.",
        "# Networks, where hosts have several: export NCCL_SOCKET_IFNAME=eth0 NCCL_IB_HCA=mlx5",
    ]
    for number, nodes in kinds:
        lines += [
            f"# Slurm: options that pick {len(nodes)} nodes of g{number}",
            f': "${{SLURM_G{number}:=}}"',
        ]
    lines += ["# Kubernetes: image with the framework in it", ': "${IMAGE:=}"', "export IMAGE"]
    needed = [item.name for item in given if not item.usual]
    lines += [
        f"for one in {words(needed)}; do",
        '  eval "[ -n \\"\\$$one\\" ]" || { echo "settings.sh: give $one" >&2; exit 2; }',
        "done",
        f"set -- {_quoted(line)}",
    ]
    return "\n".join(lines) + "\n"


def _quoted(line: str) -> str:
    """The call with each of its variables in double quotes, so that blanks in values split nothing."""
    return " ".join(f'"{item}"' if "$" in item else item for item in line.split())


def _slurm(kinds: list[tuple[int, list[int]]], cluster: Cluster) -> str:
    parts = [
        f"--nodes={len(nodes)} --ntasks-per-node=1 --gpus-per-node={cluster.groups[number].node.gpus} "
        f"--exclusive $SLURM_G{number}"
        for number, nodes in kinds
    ]
    starts = []
    for place, (_, nodes) in enumerate(kinds):
        which = f"--het-group={place} " if len(kinds) > 1 else ""
        command = f'set -- {words(nodes)}; shift "$SLURM_NODEID"; exec sh {LAUNCH_FILE} node "$1"'
        starts.append(f"srun {which}sh -c {word(command)} &")
    hosts = "SLURM_JOB_NODELIST_HET_GROUP_0" if len(kinds) > 1 else "SLURM_JOB_NODELIST"
    lines = [
        "#!/bin/bash",
        "# Submits the plan, a part for each kind of node: bash slurm.sh. settings.sh says which nodes.",
        "set -eu",
        'if [ -z "${SLURM_JOB_ID:-}" ]; then',
        '  cd -- "$(dirname -- "$0")"',
        f"  . ./{SETTINGS_FILE}",
        "  # Options are words: unquoted on purpose.",
        f"  exec sbatch --job-name={_NAME} {' : '.join(parts)} {SLURM_FILE}",
        "fi",
        'cd -- "$SLURM_SUBMIT_DIR"',
        f'MASTER_ADDR=$(scontrol show hostnames "${hosts}" | sed -n 1p)',
        "export MASTER_ADDR",
        *starts,
        "failed=0",
        'for one in $(jobs -p); do wait "$one" || failed=$?; done',
        'exit "$failed"',
    ]
    return "\n".join(lines) + "\n"


_APPLY = f"""\
# kubectl create configmap {_NAME} --from-file=.%s (of this folder, settings.sh filled in), then
# . ./{SETTINGS_FILE} && envsubst '$IMAGE' < {KUBERNETES_FILE} | kubectl apply -f -
"""


def _kubernetes(kinds: list[tuple[int, list[int]]], cluster: Cluster, subfolders: Sequence[str]) -> str:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": _NAME},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": _NAME}},
    }
    first = f"{_NAME}-g{kinds[0][0]}-0.{_NAME}"
    keys = {name.replace("/", "."): name for name in subfolders}
    jobs = [_job(number, nodes, cluster, first, keys) for number, nodes in kinds]
    sources = "".join(f" --from-file={key}={name}" for key, name in keys.items())
    return _APPLY % sources + yaml.safe_dump_all([service, *jobs], sort_keys=False, width=1000)


def _job(
    number: int, nodes: list[int], cluster: Cluster, first: str, keys: Mapping[str, str]
) -> dict[str, Any]:
    """An indexed Kubernetes job: one pod per node of a group, which finds its planned node by its index.

    `keys`: for files in subfolders, name by key of the ConfigMap.
    """
    node = cluster.groups[number].node
    placed = "".join(
        f" && mkdir -p {name.rpartition('/')[0]} && mv {key} {name}" for key, name in keys.items()
    )
    pick = (
        f"mkdir -p /work && cp -L /plan/* /work && cd /work{placed} && set -- {words(nodes)} && "
        f'shift "$JOB_COMPLETION_INDEX" && exec sh {LAUNCH_FILE} node "$1"'
    )
    container = {
        "name": "agent",
        "image": "${IMAGE}",
        "command": ["sh", "-c", pick],
        "env": [{"name": "MASTER_ADDR", "value": first}],
        "resources": {"limits": {gpu_resource(node.gpu.name): node.gpus}},
        "volumeMounts": [{"name": "plan", "mountPath": "/plan"}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"{_NAME}-g{number}"},
        "spec": {
            "completions": len(nodes),
            "parallelism": len(nodes),
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": {
                "metadata": {"labels": {"app": _NAME}},
                "spec": {
                    "subdomain": _NAME,
                    "restartPolicy": "Never",
                    "nodeSelector": node_selector(node.gpu.name),
                    "containers": [container],
                    "volumes": [
                        {"name": "plan", "configMap": {"name": _NAME}},
                        {"name": "shm", "emptyDir": {"medium": "Memory"}},
                    ],
                },
            },
        },
    }
