"""Measured weight syncs against predicted ones and their bound: methods in the words of sources."""

import re
from collections.abc import Mapping, Sequence
from math import ceil, sqrt

from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb, load_cluster
from tangram_sim.post_training.overheads import load_overheads
from tangram_sim.post_training.sync import (
    BROADCAST,
    BUCKETED,
    DELTA,
    GATHER,
    GATHERED,
    PACKED,
    SHARDED,
    Sync,
    sync_of,
    weight_bytes,
)
from tangram_validate.post_training.documents import (
    RlSyncDocument,
    RlSyncScoreDocument,
    RlUnpredictedDocument,
)
from tangram_validate.post_training.models import model_of
from tangram_validate.published.cells import CellError, Cells

COLUMNS = ("gpu", "model", "method", "seconds_low", "seconds_high")
_NEAR = 1.5  # a sync is met within this factor
_USUAL_GPUS = 8
_STATE_BYTES = 18.0  # a parameter: weights, gradients and Adam's state
# The first word that a method's description has, in this order.
_METHODS = (
    ("colocated", GATHER),
    ("delta", DELTA),
    ("bucket", BUCKETED),
    ("calculator", PACKED),
    ("packed", PACKED),
    ("broadcast", BROADCAST),
    ("shard", SHARDED),
)


def score_syncs(rows: Sequence[Mapping[str, str]], hwdb: Hwdb) -> RlSyncScoreDocument:
    """Every row's predicted seconds and bound, and how many are met; rows without a prediction say why."""
    met, missing = list[RlSyncDocument](), list[RlUnpredictedDocument]()
    for number, row in enumerate(rows, 1):
        cells = Cells(row)
        name = cells.text("row_id") or f"row {number}"
        try:
            met.append(_compared(name, cells, hwdb))
        except (CellError, TangramError) as error:
            missing.append(RlUnpredictedDocument(run_id=name, source=cells.text("source"), reason=str(error)))
    count = max(len(met), 1)
    return RlSyncScoreDocument(
        n=len(met),
        within_factor=sum(rl_sync.within_factor for rl_sync in met) / count if met else None,
        bound_below=sum(rl_sync.bound_s <= rl_sync.high_s for rl_sync in met) / count if met else None,
        syncs=met,
        unpredicted=missing,
    )


def _compared(name: str, cells: Cells, hwdb: Hwdb) -> RlSyncDocument:
    low, high = cells.number("seconds_low"), cells.number("seconds_high")
    low, high = low or high, high or low
    if not low or not high:
        raise CellError("seconds_low and seconds_high are blank: nothing to compare with")
    found, scale = _predicted(cells, hwdb)
    seconds = found.seconds * scale
    if found.method == GATHER and "transfer" not in cells.text("method").lower():
        seconds += load_overheads(hwdb).sync_s  # the whole refit: engines stop, load and go on
    return RlSyncDocument(
        row_id=name,
        source=cells.text("source"),
        method=found.method,
        low_s=low,
        high_s=high,
        seconds=seconds,
        bound_s=found.bound_s * scale,
        within_factor=1 / _NEAR <= seconds / sqrt(low * high) <= _NEAR,
    )


def _predicted(cells: Cells, hwdb: Hwdb) -> tuple[Sync, float]:
    """(the sync of a row, how many times larger the run's model is than the one that stands for it)."""
    words = cells.text("method").lower()
    method = next((name for word, name in _METHODS if word in words), None)
    layout = f"{cells.text('train_layout')} {cells.text('framework')}".lower()
    if method == BROADCAST and re.search(r"fsdp|hsdp|\bep\s*\d", layout):
        method = GATHERED
    if method is None:
        raise CellError(
            f"method {words or 'not stated'!r}: none of {', '.join(word for word, _ in _METHODS)}"
        )
    size = cells.number("weight_bytes_gb")
    known = dict(cells.row) | ({"params_b": str(size / 2.0)} if size and not cells.text("params_b") else {})
    model, scale = model_of(Cells(known))
    gpu = hwdb.gpu(cells.text("gpu")).name
    gpus = cells.count("train_gpus") or _least_gpus(model.parameters * scale, gpu, hwdb)
    node = min(gpus, _USUAL_GPUS)
    cluster = load_cluster(f"{gpu}x{node}:{max(gpus // node, 1)}", hwdb)
    width = re.search(
        r"tp\s*(\d+)", cells.text("rollout_layout") or cells.text("train_layout").split("generation")[-1]
    )
    precision = "bf16" if "bf16" in cells.text("precision").lower() or not cells.text("precision") else "fp8"
    found = sync_of(
        model,
        precision,
        int(width[1]) if width else _least_width(weight_bytes(model, precision) * scale, gpu, hwdb),
        cluster,
        method,
        overheads=load_overheads(hwdb),
        hwdb=hwdb,
        rollout=() if method == GATHER else [gpu],
    )
    return found, scale


def _least_gpus(parameters: float, gpu: str, hwdb: Hwdb) -> int:
    """GPUs of whole nodes that hold the training state of a model, for rows without a count."""
    held = parameters * _STATE_BYTES / (0.8 * hwdb.gpu(gpu).memory_bytes)
    return _USUAL_GPUS * max(ceil(held / _USUAL_GPUS), 1)


def _least_width(size: float, gpu: str, hwdb: Hwdb) -> int:
    """The narrowest engine that holds weights of `size` bytes, for rows without a layout."""
    width = 1
    while size / width > 0.9 * hwdb.gpu(gpu).memory_bytes:
        width *= 2
    return width
