"""Failure figures assumed where none are stated: a published rate, seconds from state bytes."""

from functools import lru_cache

from tangram_sim.hwdb.model_section import model_from_dict
from tangram_sim.reliability.failures import load_failures
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.training.job import OPTIMIZER_STATE_BYTES, RECIPES

PRESET = "llama3"
STORE_BYTES_PER_S = 1e9  # assumed: what one node writes to and reads from a shared file system
RESTART_S = 75.0  # processes and communicators, as 1 to 32 nodes took after a loss: 54 to 95 s
ASSUMED_SECONDS = (
    "assumed: every node writes and reads its share of the plan's state at 1 GB/s, and a restart takes 75 s "
    "beside that (54 to 95 s measured on 1 to 32 nodes)"
)


@lru_cache(maxsize=1)
def usual_mtbf_hours() -> tuple[float, str]:
    """(mean hours between failures of one node, where the figure comes from)."""
    model = load_failures(PRESET)
    rate = model.per_1000_node_days({"": 1})
    return 24_000.0 / rate, f"assumed: the preset {PRESET}, {rate:.3g} failures in 1,000 node-days"


def checkpoint_s(document: PlanDocument, nodes: int) -> float:
    """Seconds for which a checkpoint stops a plan on `nodes` nodes: trained weights, master copy, moments."""
    return _trained_bytes(document) / (max(nodes, 1) * STORE_BYTES_PER_S)


def restart_s(document: PlanDocument, nodes: int) -> float:
    """Seconds from a failure until the plan trains again: restart, and reading its state."""
    frozen = (1.0 - document.job.trainable) * _parameters(document) * _weight_bytes(document)
    return RESTART_S + (_trained_bytes(document) + frozen) / (max(nodes, 1) * STORE_BYTES_PER_S)


def _parameters(document: PlanDocument) -> float:
    return float(model_from_dict(document.model, "plan: model").parameters)


def _weight_bytes(document: PlanDocument) -> float:
    return RECIPES[document.job.dtype].precision.weight_bytes


def _trained_bytes(document: PlanDocument) -> float:
    recipe = RECIPES[document.job.dtype]
    kept = _weight_bytes(document) + recipe.master_bytes + OPTIMIZER_STATE_BYTES[document.job.optimizer]
    return _parameters(document) * document.job.trainable * kept
