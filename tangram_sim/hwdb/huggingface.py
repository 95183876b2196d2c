"""Hugging Face config.json -> Model: which families are known, and what a file must say to be one of them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tangram_sim.datafiles import read_json
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb.families.bert import bert
from tangram_sim.hwdb.families.config import Config, shown
from tangram_sim.hwdb.families.deepseek import deepseek_v2, deepseek_v3
from tangram_sim.hwdb.families.falcon import falcon
from tangram_sim.hwdb.families.gemma import gemma2, gemma3, gemma3_text
from tangram_sim.hwdb.families.gpt import gpt2, gpt_neo, gpt_neox, opt
from tangram_sim.hwdb.families.gpt_oss import gpt_oss
from tangram_sim.hwdb.families.llama import granite, llama, mistral, mixtral, phi3, qwen2, qwen3, qwen3_moe
from tangram_sim.hwdb.families.sparse import glm4_moe, glm_moe_dsa, kimi_k25, minimax_m2, qwen3_5_moe
from tangram_sim.models import Model

FAMILIES: dict[str, Callable[[Config], Model]] = {
    "bert": bert,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "falcon": falcon,
    "gemma2": gemma2,
    "gemma3": gemma3,
    "gemma3_text": gemma3_text,
    "glm4_moe": glm4_moe,
    "glm_moe_dsa": glm_moe_dsa,
    "gpt2": gpt2,
    "gpt_neo": gpt_neo,
    "gpt_neox": gpt_neox,
    "gpt_oss": gpt_oss,
    "granite": granite,
    "kimi_k25": kimi_k25,
    "llama": llama,
    "minimax_m2": minimax_m2,
    "mistral": mistral,
    "mixtral": mixtral,
    "opt": opt,
    "phi3": phi3,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen3_5_moe": qwen3_5_moe,
    "qwen3_moe": qwen3_moe,
}


def from_config(facts: Mapping[str, Any], where: str, name: str) -> Model:
    """The model a config.json describes; `where` stands for the file in messages.

    Raises BadInputError for an unknown `model_type` or an impossible value, naming the key.
    """
    family = facts.get("model_type")
    known = f"known families: {', '.join(sorted(FAMILIES))}"
    if family is None:
        raise BadInputError(f"{where}: model_type is missing; it names the family of the model ({known})")
    if not isinstance(family, str) or family not in FAMILIES:
        raise BadInputError(
            f"{where}: model_type is {shown(family)}, a family this program cannot read ({known}); "
            "describe the model in a model.yaml instead"
        )
    return FAMILIES[family](Config(facts, where, name))


def read_config(path: Path, name: str) -> Model:
    """Read a Hugging Face config.json. Raises BadInputError naming file and key."""
    facts = read_json(path)
    if not isinstance(facts, dict):
        raise BadInputError(f"{path}: expected a JSON object such as a Hugging Face config.json")
    return from_config(facts, str(path), name)
