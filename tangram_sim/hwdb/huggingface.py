"""Hugging Face config.json -> Model: the known families."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb.families.config import Config, shown
from tangram_sim.hwdb.families.decoders import DENSE, dense
from tangram_sim.hwdb.families.deepseek import deepseek_v2, deepseek_v3
from tangram_sim.hwdb.families.gpt import bert, bloom, falcon, gpt2, gpt_neo, gpt_neox, gptj, opt
from tangram_sim.hwdb.families.gpt_oss import gpt_oss
from tangram_sim.hwdb.families.nemotron_h import nemotron_h
from tangram_sim.hwdb.families.sparse import (
    gemma3,
    glm4_moe,
    glm_moe_dsa,
    kimi_k25,
    llama4,
    minimax_m2,
    mixtral,
    qwen2_moe,
    qwen3_5,
    qwen3_5_moe,
    qwen3_moe,
    text_of,
)
from tangram_sim.models import Model

FAMILIES: dict[str, Callable[[Config], Model]] = {
    **{family: partial(dense, family) for family in DENSE},
    "bert": bert,
    "bloom": bloom,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "deepseek_v32": glm_moe_dsa,
    "falcon": falcon,
    "gemma3": gemma3,
    "glm4_moe": glm4_moe,
    "glm_moe_dsa": glm_moe_dsa,
    "gpt2": gpt2,
    "gpt_neo": gpt_neo,
    "gpt_neox": gpt_neox,
    "gpt_oss": gpt_oss,
    "gptj": gptj,
    "kimi_k2": deepseek_v3,
    "kimi_k25": kimi_k25,
    "llama4": llama4,
    "llama4_text": llama4,
    "minimax_m2": minimax_m2,
    "mixtral": mixtral,
    "nemotron_h": nemotron_h,
    "opt": opt,
    "qwen2_moe": qwen2_moe,
    "qwen3_5": qwen3_5,
    "qwen3_5_moe": qwen3_5_moe,
    "qwen3_moe": qwen3_moe,
    "qwen3_next": qwen3_5_moe,
}


# Families whose layers cannot be priced, why, and the family to start from.
_UNPRICED = {
    "mamba": ("its mixers are selective scans", "qwen3_next"),
    "mamba2": ("its mixers are state-space duals", "qwen3_next"),
    "falcon_mamba": ("its mixers are selective scans", "qwen3_next"),
    "bamba": ("most of its mixers are state-space duals", "qwen3_next"),
    "granitemoehybrid": ("most of its mixers are state-space duals", "granite"),
    "jamba": ("most of its mixers are selective scans", "mixtral"),
    "minimax": ("its lightning attention has no rows", "minimax_m2"),
    "gemma3n": ("its layers are nested and its embeddings per layer", "gemma3_text"),
    "t5": ("it has an encoder and a decoder", "bert"),
}


def from_config(facts: Mapping[str, Any], where: str, name: str) -> Model:
    """The model that a config.json describes; `where` stands for the file in messages.

    A file of a model with vision whose own family is not known is read by its `text_config`. Raises
    BadInputError for an unknown `model_type` or an impossible value, naming the key.
    """
    family = facts.get("model_type")
    known = f"known families: {', '.join(sorted(FAMILIES))}"
    if family is None:
        raise BadInputError(f"{where}: model_type is missing; it names the family of the model ({known})")
    if isinstance(family, str) and family in FAMILIES:
        return FAMILIES[family](Config(facts, where, name))
    inner = facts.get("text_config")
    if isinstance(inner, dict) and inner.get("model_type") in FAMILIES:
        text = text_of(Config(facts, where, name))
        return FAMILIES[inner["model_type"]](text)
    why, near = _UNPRICED.get(str(family), ("", ""))
    if not why:
        near = next(iter(get_close_matches(str(family)[:40], FAMILIES, n=1, cutoff=0.4)), "llama")
    raise BadInputError(
        f"{where}: model_type is {shown(family)}, a family this program cannot read"
        f"{f' ({why})' if why else ''}; nearest: {near}; {known}; `tangram models template {where}` writes a "
        "model.yaml to describe it with"
    )
