"""Kubernetes manifests: a Deployment and a Service for every group of equal replicas, written and read.

GPUs are requested by the device plugin's resource (`nvidia.com/gpu`, `amd.com/gpu`), nodes by the label of
NVIDIA's GPU feature discovery, `nvidia.com/gpu.product`: the product's name with dashes for blanks.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from tangram_sim.datafiles import parse_json
from tangram_sim.errors import BadInputError
from tangram_sim.export.quoting import label
from tangram_sim.export.service.commands import ENGINES, PORT, command, parsed
from tangram_sim.export.service.groups import ServedGroup, ServiceLaunch
from tangram_sim.export.uniform import CannotExportError

FILE = "kubernetes.yaml"
_PRODUCT, _OWN = "nvidia.com/gpu.product", "tangram-sim/gpu"
# What GPU feature discovery calls them; kinds beyond these get a label of the user's own.
_PRODUCTS = {
    "H100-SXM5-80GB": "NVIDIA-H100-80GB-HBM3",
    "H100-PCIe-80GB": "NVIDIA-H100-PCIe",
    "H200-SXM-141GB": "NVIDIA-H200",
    "A100-SXM4-80GB": "NVIDIA-A100-SXM4-80GB",
    "A100-SXM4-40GB": "NVIDIA-A100-SXM4-40GB",
    "A100-PCIe-80GB": "NVIDIA-A100-80GB-PCIe",
    "L40S": "NVIDIA-L40S",
    "L4": "NVIDIA-L4",
    "A10": "NVIDIA-A10",
    "A10G": "NVIDIA-A10G",
    "T4": "Tesla-T4",
    "GB200": "NVIDIA-GB200",
    "GB300": "NVIDIA-GB300",
}


def write(service: ServiceLaunch, weights: Mapping[str, str]) -> tuple[str, list[str]]:
    """(the manifests, notes). Raises CannotExportError for replicas over several kinds of GPU."""
    documents, notes = list[dict[str, Any]](), list[str]()
    for number, group in enumerate(service.groups):
        if len(group.kinds) > 1:
            raise CannotExportError(
                f"{group.name}: its stages are on {' and '.join(group.kinds)}, and pods of a Deployment are "
                "alike: export it with `to=` of its engine, or plan with the other configurations"
            )
        launch_command = command(group, service.engine, weights.get(group.model, group.model))
        notes += launch_command.notes
        if group.kinds[0] not in _PRODUCTS:
            notes.append(
                f"label the nodes that hold {group.kinds[0]}: kubectl label node NODE "
                f"{_OWN}={label(group.kinds[0])}"
            )
        documents += [
            _deployment(
                service.engine,
                number,
                group,
                dict(launch_command.environment),
                list(launch_command.arguments),
            ),
            _service(number, group),
        ]
    return yaml.safe_dump_all(documents, sort_keys=False, width=1000), notes


def _label(number: int, group: ServedGroup) -> str:
    """A name valid in Kubernetes: lower case and dashes, at most 63 characters."""
    return f"g{number}-" + re.sub(r"[^a-z0-9]+", "-", group.name.lower()).strip("-")[:50].strip("-")


def node_selector(kind: str) -> dict[str, str]:
    """The node label that selects a GPU kind: from GPU feature discovery, or one that the user sets."""
    return {_PRODUCT: _PRODUCTS[kind]} if kind in _PRODUCTS else {_OWN: label(kind)}


def gpu_resource(kind: str) -> str:
    """The Kubernetes resource that a pod requests for GPUs of a kind."""
    return "amd.com/gpu" if kind.startswith("MI") else "nvidia.com/gpu"


def _deployment(
    engine: str, number: int, group: ServedGroup, environment: dict[str, str], arguments: list[str]
) -> dict[str, Any]:
    name, kind = _label(number, group), group.kinds[0]
    container = {
        "name": engine,
        "image": ENGINES[engine].image,
        "command": [arguments[0]],
        "args": arguments[1:],
        "env": [{"name": key, "value": value} for key, value in environment.items()],
        "ports": [{"containerPort": PORT}],
        "resources": {"limits": {gpu_resource(kind): group.gpus}},
        "readinessProbe": {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 10},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "annotations": {
                "tangram-sim/configuration": group.name,
                "tangram-sim/model": group.model,
                "tangram-sim/precision": f"{group.precision} {group.kv_precision}",
                "tangram-sim/stages": json.dumps(group.stages),
            },
        },
        "spec": {
            "replicas": group.count,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "nodeSelector": node_selector(kind),
                    "containers": [container],
                    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
                },
            },
        },
    }


def _service(number: int, group: ServedGroup) -> dict[str, Any]:
    name = _label(number, group)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": PORT, "targetPort": PORT}]},
    }


def _stages_of(text: str) -> list[tuple[str, int, int]]:
    """(GPU kind, tensor-parallel degree, layers) of every stage, from an annotation. Raises ValueError."""
    return [(kind, int(tp), int(layers)) for kind, tp, layers in parse_json(text, FILE)]


def read(text: str, engine: str) -> tuple[ServedGroup, ...]:
    """The groups that the manifests deploy. Raises BadInputError for any other manifests."""
    groups = []
    for item in yaml.safe_load_all(text):
        if item["kind"] != "Deployment":
            continue
        try:
            told, pod = item["metadata"]["annotations"], item["spec"]["template"]["spec"]
            container, stages = pod["containers"][0], _stages_of(told["tangram-sim/stages"])
            precision, kv = told["tangram-sim/precision"].split()
            selected = pod["nodeSelector"].get(_OWN) or pod["nodeSelector"][_PRODUCT]
            asked = next(iter(container["resources"]["limits"].values()))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise BadInputError(f"{FILE}: not a manifest of `tangram serve export`: {error}") from None
        wanted = {_PRODUCTS.get(kind, label(kind)) for kind, _, _ in stages}
        group = parsed(
            engine,
            {entry["name"]: entry["value"] for entry in container["env"]},
            [*container["command"], *container["args"]],
            stages,
            name=told["tangram-sim/configuration"],
            model=told["tangram-sim/model"],
            count=item["spec"]["replicas"],
            precision=precision,
            kv_precision=kv,
        )
        if wanted != {selected} or asked != group.gpus:
            raise BadInputError(f"{FILE}: {asked} GPUs of {selected} are asked for, the plan has {stages}")
        groups.append(group)
    return tuple(groups)
