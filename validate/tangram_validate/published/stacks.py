"""Software stacks: the name under which hwdb/efficiency keeps what a framework of some date costs."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tangram_validate.published.defaults import FAMILIES, UNKNOWN, Software

GENERIC = "generic"
# Family of a framework's name -> stack. Families that are missing here run as `generic`.
_STACKS = {
    "megatron": "megatron",  # Megatron-Core and the Megatron-LM scripts on top of it
    "megatron-deepspeed": "megatron-deepspeed",
    "nemo": "nemo",
    "fsdp": "fsdp",
    "deepspeed": "deepspeed",
    "jax": "jax",
    "internevo": "internevo",
    "paddle": "paddle",
    "ddp": "pytorch",
    "torch": "pytorch",
}
_BRIDGE = re.compile(r"megatron[- ]?bridge", re.IGNORECASE)
_BEFORE_CORE = "megatron-lm"  # Megatron-LM before its kernels and overlap moved into Megatron-Core
_CORE_SINCE = 2023.5
# Stacks on DeepSpeed's engine: what the host does for a kernel is the engine's.
DEEPSPEED = ("amp", "deepspeed", "megatron-deepspeed", "sailor")
# Stacks grown from one code base, or on one engine: where one of them has no runs, its sisters speak for it.
LINEAGES = {
    "megatron": ("megatron-lm", "megatron", "nemo", "megatron-bridge"),
    "deepspeed": DEEPSPEED,
    "torch": ("fsdp", "pytorch", "internevo"),
    "xla": ("jax", "pax"),
}


def stack_of(software: Software) -> str:
    """The stack of a run, by framework and date alone; `generic` where the framework is not known."""
    if software.fork:
        return software.fork
    if software.family == "nemo" and _BRIDGE.search(software.name):
        return "megatron-bridge"
    if software.family == "megatron" and software.before(_CORE_SINCE):
        return _BEFORE_CORE
    return _STACKS.get(software.family, GENERIC)


def lineage(stack: str) -> str:
    """The lineage of a stack, "" where it has none."""
    return next((name for name, members in LINEAGES.items() if stack in members), "")


def software_notes(all_of: Iterable[Software]) -> list[dict[str, Any]]:
    """`rows` and `note` for every framework that is not known, or not stated: its rows run as `generic`."""
    counts = Counter(software.name for software in all_of if software.family == UNKNOWN and not software.fork)
    return [
        {
            "rows": rows,
            "note": (f"framework {name!r} is not known" if name else "no framework is stated")
            + f", predicted as the stack {GENERIC!r}; known by a word of the name: {', '.join(FAMILIES)}",
        }
        for name, rows in counts.items()
    ]
