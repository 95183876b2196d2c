"""Models, clusters, layouts, precisions, units: what each noun says of itself, as recorded."""

from collections.abc import Callable
from dataclasses import astuple, replace
from typing import Any

import pytest

from tangram_sim.clusters import Cluster, domain_block
from tangram_sim.errors import TangramError
from tangram_sim.health import Health, Speed, slowed
from tangram_sim.hwdb import load_cluster, load_model
from tangram_sim.layouts import Layout, gradient_copies
from tangram_sim.models import Model, lora_parameters
from tangram_sim.naming import fault_of_name, fault_of_text, printable
from tangram_sim.precision import PRECISIONS, converted, plain
from tangram_sim.units import (
    amount_of,
    days_of,
    percent,
    read_watts,
    show_amount,
    show_bytes,
    show_rate,
    show_seconds,
    show_span,
    usd_of,
)
from tests.records import HWDB, hold

MODELS = (
    "bert-large", "gpt3-6.7b", "falcon-40b", "bloom-176b", "llama3-8b", "gemma2-9b", "gemma3-12b",
    "mixtral-8x7b", "qwen3-30b-a3b", "qwen3.5-35b-a3b", "deepseek-v2-lite", "deepseek-v3",
    "deepseek-v3.2", "gpt-oss-120b", "llama4-scout", "nemotron-h-56b", "nemotron3-nano-30b-a3b",
)  # fmt: skip
CLUSTERS = ("p3-p4d-p5", "mi300x-mi250x", "lab-v100-a100-a6000", "gb200-nvl72-h100", "consumer-3090-4090")
TEXTS = (
    "14d", "36h", "2w", "3 months", "1 mo", "3m", "2y", "1 year", "90", "0", "-3", "1e400", "12 days", "5 d",
    "250k", "$1.5M", "1,000", "300B", "2T", "1e9", "7e", "400W", "0.4kW", "12 MW", "350", "", "abc", "1d2",
)  # fmt: skip
NUMBERS = (0.0, 3e-9, 4.2e-5, 0.0031, 0.99, 1.0, 59.0, 60.0, 3599.0, 7200.0, 86400.0, 3e6, 4e8, 2.5e9, 1.2e13)
NAMES = (
    "H100",
    "a b",
    "",
    "x" * 300,
    "n\x1b[0m",
    "line\nbreak",
    "nul\0",
    "tab\t",
    "naïve",
    "\u202eright",
    " lead",
)
LAYOUTS = (
    Layout(), Layout(tp=8, dp=2), Layout(tp=2, dp=4, cp=2, zero_stage=1, sequence_parallel=True),
    Layout(dp=8, ep=4, zero_stage=2), Layout(dp=8, zero_stage=3, recompute="full"), Layout(dp=4, fsep=True),
    Layout(tp=2, dp=4, ep=2, recompute="selective", slices=2),
)  # fmt: skip


def told(ask: Callable[[], Any]) -> Any:
    """What is answered, or the words of the refusal."""
    try:
        return ask()
    except TangramError as refused:
        return str(refused)


def model_figures(model: Model) -> list[Any]:
    """Parameters of a model and of its parts, with and without what does not run for a token."""
    blocks = {
        block: [
            block.parameters(model.hidden), block.active_parameters(model.hidden),
            block.norm_width(model.hidden), block.usually_drops,
        ]
        for block in model.blocks
    }  # fmt: skip
    caches = [
        [
            block.attention.state_elements,
            block.attention.cached_elements(),
            block.attention.cached_elements(8),
        ]
        for block in blocks
        if getattr(block, "attention", None) is not None
    ]
    totals = [
        model.parameters, model.active_parameters, model.layers, model.embedding_parameters,
        model.head_only_parameters, model.head_parameters_total, model.vocabulary_parameters,
        model.embedding_width, lora_parameters(model, 16),
    ]  # fmt: skip
    return [totals, list(blocks.values()), caches]


def cluster_figures(cluster: Cluster) -> list[Any]:
    """Ranks, limits between groups and slow nodes of a cluster."""
    groups = range(len(cluster.groups))
    last = cluster.gpus - 1
    slow = replace(
        cluster, health=Health(compute=((0, 2.0), (last, 3.0)), memory=((last, 1.5),), network=((0, 4.0),))
    )
    return [
        cluster.gpus, list(cluster.first_rank), list(cluster.node_group),
        [cluster.group_limit(a, b) for a in groups for b in groups],
        [repr(slow.gpu_of(node)) for node in {0, len(cluster.node_group) - 1}],
        [slow.nic_of(node) for node in range(min(3, len(cluster.node_group)))],
        [gpu.name for gpu in cluster.kinds_of((0, last))], slow.health.is_full, cluster.health.is_full,
    ]  # fmt: skip


def words() -> dict[str, Any]:
    """Amounts as read and as shown; names as refused and as printed."""
    reading = {
        "days": days_of,
        "usd": usd_of,
        "amount": amount_of,
        "watts": read_watts,
    }
    showing = {
        "seconds": show_seconds, "span": show_span, "amount": show_amount, "bytes": show_bytes,
        "rate": show_rate, "percent": percent, "signed": lambda share: percent(share, 1, signed=True),
    }  # fmt: skip
    return {
        "read": {
            name: [told(lambda r=read, t=text: r(t)) for text in TEXTS] for name, read in reading.items()
        },
        "shown": {name: [show(number) for number in NUMBERS] for name, show in showing.items()},
        "names": [[fault_of_text(name), fault_of_name(name), printable(name)] for name in NAMES],
        "blocks": [
            domain_block(nodes, domain) for nodes in (1, 2, 3, 8, 12, 18) for domain in (1, 2, 4, 9, 18)
        ],
    }


def layouts() -> dict[str, Any]:
    """Layouts and precisions: degrees, copies, bytes, words."""
    speeds = (Speed(), slowed(2.0), slowed(3.0, 10.0, 20.0))
    return {
        "layouts": [[str(one), one.gpus, one.gradient_copies, one.sequences_per_rank(16)] for one in LAYOUTS],
        "together": gradient_copies(LAYOUTS[1:3]),
        "precisions": [
            [*astuple(one), one.weight_bytes, one.expert_bytes, one.attention_bytes, one.end_bytes,
             one.activation_bytes, one.kv_bytes, one.operand_bytes, one.narrow, astuple(one.types)]
            for one in (*PRECISIONS.values(), plain("fp16"), converted("mxfp8", "fp8"))
        ],
        "speeds": [
            [a.is_one, [a.at(time) for time in (0.0, 10.0, 15.0, 20.0, 99.0)], repr(a.times(b))]
            for a in speeds
            for b in speeds
        ],
    }  # fmt: skip


def recorded() -> dict[str, Callable[[], Any]]:
    """What is recorded, by name."""
    return {
        "models": lambda: {name: model_figures(load_model(name)) for name in MODELS},
        "clusters": lambda: {name: cluster_figures(load_cluster(name, HWDB)) for name in CLUSTERS},
        "words": words,
        "layouts": layouts,
    }


CASES = recorded()


@pytest.mark.parametrize("case", CASES)
def test_nouns_are_as_recorded(case: str) -> None:
    hold("nouns", case, CASES[case]())
