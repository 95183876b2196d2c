"""Random models: shipped ones by name, and dense ones and mixtures written as a model.yaml would be."""

import random
from typing import Any

SHIPPED = {  # parameters, billions
    "gpt3-1.3b": 1.3,
    "gemma2-2b": 2.6,
    "gpt3-2.7b": 2.7,
    "phi3-mini": 3.8,
    "gemma3-4b": 4.3,
    "gpt3-6.7b": 6.7,
    "mistral-7b": 7.2,
    "qwen2.5-7b": 7.6,
    "llama3-8b": 8.0,
    "opt-13b": 13.0,
    "llama2-13b": 13.0,
    "deepseek-v2-lite": 15.7,
    "gpt-neox-20b": 20.6,
    "gpt-oss-20b": 20.9,
    "gemma2-27b": 27.2,
    "qwen3-30b-a3b": 30.5,
    "qwen3-32b": 32.8,
    "falcon-40b": 41.3,
    "mixtral-8x7b": 46.7,
    "llama3-70b": 70.6,
    "qwen2.5-72b": 72.7,
    "gpt-oss-120b": 117.0,
    "mixtral-8x22b": 141.0,
    "gpt3-175b": 175.0,
    "qwen3-235b-a22b": 235.0,
    "deepseek-v2": 236.0,
    "llama3-405b": 405.0,
    "deepseek-v3": 671.0,
}


def model(rng: random.Random, name: str, most_parameters: float, most_layers: int) -> str | dict[str, Any]:
    """A shipped name, or the mapping of a model.yaml, of at most about `most_parameters`.

    `most_layers` below 80 asks for small random ones only.
    """
    known = [shipped for shipped, billions in SHIPPED.items() if billions * 1e9 <= most_parameters]
    if known and most_layers >= 80 and rng.random() < 0.5:
        return rng.choice(known)
    target = _between(rng, min(1e9, most_parameters / 2), most_parameters)
    layers = max(2, min(most_layers, round(16 * (target / 1e9) ** rng.uniform(0.2, 0.35))))
    layers = max(2, layers + rng.choice((-1, 0, 0, 1)))  # odd depths are real, too
    return _mixture(rng, name, target, layers) if rng.random() < 0.4 else _dense(rng, name, target, layers)


def _between(rng: random.Random, low: float, high: float) -> float:
    """Log-uniform."""
    return float(low * (high / low) ** rng.random())


def _attention(rng: random.Random, hidden: int) -> dict[str, int]:
    """Heads of 128 (or 64), with fewer keys and values in half of the models."""
    heads = hidden // (128 if hidden >= 2048 else 64)
    shared = [count for count in (1, 2, 4, 8) if heads % count == 0 and rng.random() < 0.5]
    return {"heads": heads, "kv_heads": shared[-1] if shared else heads}


def _dense(rng: random.Random, name: str, target: float, layers: int) -> dict[str, Any]:
    """Gated or plain, the feed-forward 2.7 to 4 times as wide as the model."""
    gated, wide = rng.random() < 0.7, rng.choice((2.75, 3.5, 4.0))
    each = 3.0 + wide * (3 if gated else 2)  # matrices of hidden x hidden in a block
    hidden = _rounded((target / layers / each) ** 0.5)
    layer = {
        "count": layers,
        "attention": _attention(rng, hidden),
        "feed_forward": {"width": round(hidden * wide), "gated": gated},
    }
    return _whole(rng, name, hidden, [layer])


def _mixture(rng: random.Random, name: str, target: float, layers: int) -> dict[str, Any]:
    """8 to 256 experts, 1 to 8 active; the first layers dense in some, shared experts in some."""
    experts = rng.choice((8, 8, 16, 32, 64, 128, 160, 256))
    active = rng.choice([count for count in (1, 2, 4, 6, 8) if count <= experts // 4])
    wide = max(4.0 / experts * rng.choice((1, 2, 4)), 0.1)  # one expert's width over the model's
    hidden = _rounded((target / layers / (3.0 + 3 * experts * wide)) ** 0.5)
    width = max(128, round(hidden * wide / 64) * 64)
    attention = _attention(rng, hidden)
    shared = {"shared_width": width} if rng.random() < 0.3 else {}
    entry = {
        "attention": attention,
        "experts": {"count": experts, "active": active, "width": width, **shared},
    }
    dense = rng.choice((0, 0, 1, 3)) if layers > 6 else 0
    first = [{"count": dense, "attention": attention, "feed_forward": {"width": 4 * hidden}}] if dense else []
    return _whole(rng, name, hidden, [*first, {"count": layers - dense, **entry}])


def _rounded(hidden: float) -> int:
    """A width that tensor parallelism can share: a multiple of 256, or of 64 where small."""
    step = 256 if hidden >= 1024 else 64
    return max(256, round(hidden / step) * step)


def _whole(rng: random.Random, name: str, hidden: int, layers: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": name,
        "hidden": hidden,
        "vocab": rng.choice((32000, 50304, 128256, 151936)),
        "tied": rng.random() < 0.25,
        "max_seq": 131072,
        "layers": layers,
    }
