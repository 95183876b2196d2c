"""Clusters from `kubectl get nodes -o json`, by the labels that vendors and clouds put on nodes.

Labels: NVIDIA's GPU feature discovery (nvidia.com/gpu.product, gpu.count), AMD's node labeller
(amd.com/gpu.product-name, gpu.device-id, before 2024 with the prefix `beta.`), GKE's
cloud.google.com/gke-accelerator; node.kubernetes.io/instance-type names a row of nodes.csv.
"""

from typing import Any

from tangram_sim.datafiles import parse_json
from tangram_sim.errors import BadInputError, UnknownNameError
from tangram_sim.hwdb.database import Hwdb
from tangram_sim.hwdb.inventories import FoundGroup, Inventory, UnusableNodeError, gpu_named, inventory

_PRODUCTS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator")
_DEVICE_IDS = ("amd.com/gpu.device-id", "beta.amd.com/gpu.device-id")
# PCI device ids where the labeller knows no product: physical function and the virtual one that clouds hand
# on (ROCm/k8s-device-plugin issue 112: 74b5 on ND96isr_MI300X_v5).
_AMD_DEVICES = {"74a1": "MI300X", "74b5": "MI300X"}
_TYPES = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
_OTHER_RESOURCES = ("habana.ai/gaudi", "google.com/tpu", "aws.amazon.com/neuron", "gpu.intel.com/i915")


def from_k8s(text: str, hwdb: Hwdb, where: str) -> Inventory:
    """Node groups from saved output, without nodes that are cordoned, not ready or partitioned by MIG."""
    found, left_out = [], []
    try:
        whole = parse_json(text, where)
    except BadInputError as error:
        raise BadInputError(f"{error}; save what `kubectl get nodes -o json` prints") from None
    try:
        for node in whole["items"]:
            place = f"{where}, node {node['metadata'].get('name', '?')}"
            try:
                group = _group(node, hwdb, place)
            except UnusableNodeError as error:
                left_out.append(str(error))
                continue
            if group is not None:
                found.append(group)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadInputError(f"{where}: not what `kubectl get nodes -o json` prints") from None
    if not found and not left_out:
        raise BadInputError(
            f"{where}: no node has GPUs: neither a label {_PRODUCTS[0]} nor {' or '.join(_RESOURCES)} in a "
            "capacity"
        )
    return inventory(found, left_out)


def _group(node: dict[str, Any], hwdb: Hwdb, where: str) -> FoundGroup | None:
    """One node as a group of its own; None where it has no GPU."""
    labels = node["metadata"].get("labels") or {}
    status = node.get("status") or {}
    capacity = status.get("capacity") or {}
    sliced = [name for name, count in capacity.items() if name.startswith("nvidia.com/mig-") and int(count)]
    if sliced:
        raise UnusableNodeError(f"{where}: cut by MIG ({', '.join(sliced)}); plans are made for whole GPUs")
    held = sum(int(capacity.get(name, 0)) for name in _RESOURCES)
    count = int(labels.get("nvidia.com/gpu.count") or held)
    other = [name for name in _OTHER_RESOURCES if int(capacity.get(name, 0))]
    if other and not held:  # where there are others, it is the processor's own
        raise UnusableNodeError(f"{where}: {other[0]} is no GPU that is known here")
    if not count:
        return None
    if (node.get("spec") or {}).get("unschedulable"):
        raise UnusableNodeError(f"{where}: cordoned")
    ready = [item["status"] for item in status.get("conditions") or [] if item.get("type") == "Ready"]
    if ready and ready[0] != "True":
        raise UnusableNodeError(f"{where}: not ready")
    row = _machine(labels, hwdb)
    gpu = _gpu(labels, hwdb, where) or (hwdb.node(row).gpu.name if row else "")
    if not gpu:
        raise BadInputError(
            f"{where}: has GPUs, but none of the labels {', '.join(_PRODUCTS)} and no instance type of "
            "`tangram hw list`"
        )
    alike = bool(row) and (hwdb.node(row).gpu.name, hwdb.node(row).gpus) == (gpu, count)
    return FoundGroup(1, gpu, count, node=row if alike else "")


def _gpu(labels: dict[str, Any], hwdb: Hwdb, where: str) -> str:
    """The row of gpus.csv that the labels name; empty where none does."""
    for label in _PRODUCTS:
        if labels.get(label):
            return gpu_named(str(labels[label]), hwdb, where)
    for label in _DEVICE_IDS:
        if str(labels.get(label)).lower() in _AMD_DEVICES:
            return hwdb.gpu_row(_AMD_DEVICES[str(labels[label]).lower()]).name
    return ""


def _machine(labels: dict[str, Any], hwdb: Hwdb) -> str:
    """The row of nodes.csv of the node's instance type; empty where it is not listed."""
    for label in _TYPES:
        name = str(labels.get(label) or "").removeprefix("Standard_")
        try:
            return hwdb.row("nodes", name).name if name else ""
        except UnknownNameError:
            continue
    return ""
