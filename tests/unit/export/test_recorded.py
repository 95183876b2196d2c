"""Exports held to what the frameworks' own parsers accepted, recorded by `make test-frameworks`.

`recorded/megatron-0.16.1.json` has every flag with its type, choices and default; the files of TorchTitan the
keys of its sections; `accepted.json` a digest of every cell's files that were parsed and built.
"""

import ast
import json
import shlex
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tangram_sim.errors import TangramError
from tangram_sim.export.formats import export
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.models import Experts, has_experts
from tangram_sim.planners.uniform.frameworks import VERSIONS, launching
from tests.frameworks.cells import MODELS, Cell, digest, plan_of

RECORDED = Path(__file__).parent / "recorded"
HWDB = Hwdb.load()
QUICK = {"pp2-tp2-zero1-uneven", "pp2-ep4-zero3-uneven", "pp1-zero1"}
# What the specification says of each model: (accepted by, refused by).
TITAN = {"0.2.2": {"llama4-scout"}, "0.3.0": {"kimi-k2.5"}}
TITAN_BOTH = {"llama3-8b", "llama3-70b", "qwen3-8b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-120b"}
NO_FLAGS = {"gemma2-9b", "gemma3-12b", "gpt-oss-120b", "llama4-scout"}


@cache
def recorded(name: str) -> Any:
    return json.loads((RECORDED / f"{name}.json").read_text())


def cell(name: str) -> Cell:
    for framework in VERSIONS:
        start = f"{framework.name}-{framework.version}-"
        for model in MODELS:
            if name.startswith(f"{start}{model}-"):
                layout, _, cluster = name.removeprefix(f"{start}{model}-").rpartition("-")
                return Cell(model, framework, layout, cluster)
    raise AssertionError(name)


def files_of(one: Cell) -> dict[str, str]:
    return export(plan_of(one, HWDB), one.framework.name, version=one.framework.version).files


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if cell(name).layout in QUICK else pytest.mark.slow)
        for name in sorted(recorded("accepted"))
        if cell(name).cluster == "equal"
    ],
)
def test_files_are_those_that_the_framework_parsed_and_built(name: str, tmp_path: Path) -> None:
    """After a change of exports: `make test-frameworks` reads the new files and records them."""
    for file, text in files_of(cell(name)).items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    assert digest(tmp_path) == recorded("accepted")[name]


def accepts(flag: str, values: list[str]) -> bool:
    """Whether a recorded flag takes these words."""
    known = recorded("megatron-0.16.1")[flag]
    if known["type"] == "switch":
        return not values
    if len(values) != 1 and "nargs" not in known:
        return False
    readers = {"int": int, "float": float, "str": str}
    for value in values:
        readers.get(known["type"], str)(value)
        if "choices" in known and not any(value in choice for choice in known["choices"]):
            return False
    return bool(values)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("layout", sorted(QUICK))
def test_every_flag_of_megatron_is_one_of_its_parser(model: str, layout: str) -> None:
    try:
        text = files_of(Cell(model, VERSIONS[0], layout, "equal"))["megatron.args"]
    except TangramError:
        return
    for line in text.splitlines():
        flag, *values = shlex.split(line)
        assert accepts(flag, values), line


@pytest.mark.parametrize("name", sorted(recorded("megatron-0.16.1-fields")))
def test_what_megatron_made_of_its_arguments_is_the_model(name: str) -> None:
    """Field by field of its configuration, as its own parser filled it; multi-latent attention, too."""
    model, fields = load_model(name), recorded("megatron-0.16.1-fields")[name]
    details, attention = model.details, model.blocks[-1].attention
    wanted: dict[str, Any] = {
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": attention.heads,
        "layernorm_epsilon": model.norm_epsilon,
        "normalization": "RMSNorm",
        "gated_linear_unit": True,
        "add_bias_linear": False,
        "add_qkv_bias": attention.qkv_bias,
        "qk_layernorm": bool(attention.kv_rank or attention.norm_parameters),
        "rotary_base": round(model.rotary_base),
        "rotary_percent": details.rotary_share,
        "use_rope_scaling": details.scaling_type == "llama3",
        "bf16": True,
    }
    if attention.kv_rank:
        wanted |= {
            "kv_lora_rank": attention.kv_rank,
            "q_lora_rank": attention.query_rank,
            "rope_type": "yarn",
            "rotary_scaling_factor": details.scaling("factor"),
            "mscale": details.scaling("mscale"),
            "mscale_all_dim": details.scaling("mscale_all_dim"),
        }
    else:
        wanted |= {"num_query_groups": attention.kv_heads, "kv_channels": attention.head_dim}
    part = model.blocks[-1].feed_forward
    if isinstance(part, Experts):
        grouped = details.router_groups > 1
        wanted |= {
            "num_moe_experts": part.experts,
            "moe_router_topk": part.active,
            "moe_ffn_hidden_size": part.width,
            "moe_shared_expert_intermediate_size": part.shared_width or None,
            "moe_grouped_gemm": True,
            "moe_token_dispatcher_type": "alltoall",
            "moe_router_dtype": "fp32",
            "moe_router_score_function": details.router_score,
            "moe_router_enable_expert_bias": details.router_correction,
            "moe_router_num_groups": details.router_groups if grouped else None,
            "moe_router_group_topk": details.router_groups_kept if grouped else None,
            "moe_router_topk_scaling_factor": details.router_scale if details.router_scale != 1 else None,
        }
    assert {key: ast.literal_eval(fields[key]) for key in wanted} == wanted


@pytest.mark.parametrize("version", ["0.2.2", "0.3.0"])
@pytest.mark.parametrize("model", sorted(TITAN_BOTH))
def test_every_key_of_torchtitan_is_one_of_its_sections(model: str, version: str) -> None:
    framework = next(item for item in VERSIONS if (item.name, item.version) == ("torchtitan", version))
    files = files_of(Cell(model, framework, "pp2-zero2-uneven", "equal"))
    known = recorded(f"torchtitan-{version}")
    if version == "0.2.2":
        found = tomllib.loads(files["torchtitan.toml"])
    else:
        assigned = {
            node.targets[0].id: ast.literal_eval(node.value)
            for node in ast.parse(files["tangram_recipe/config_registry.py"]).body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id in ("TRAINING", "PARALLELISM")
        }
        found = {"training": assigned["TRAINING"], "parallelism": assigned["PARALLELISM"]}
        assert found["training"]["disable_cuda_graphs"] is True
    for section, keys in found.items():
        assert set(keys) <= set(known[section]), section
    heads = [part[-1] for part in found["parallelism"]["module_fqns_per_model_part"]]
    assert heads[-1] == {"0.2.2": "output", "0.3.0": "lm_head"}[version]


@pytest.mark.parametrize("model", MODELS)
def test_what_launches_a_model_is_the_list_of_the_specification(model: str) -> None:
    """Each framework accepts the models it has, in its newest version, and refuses others with the reason."""
    item = Cell(model, VERSIONS[0], "pp2-zero1", "equal")
    plan = plan_of(item, HWDB)
    named = launching(plan)
    assert ("megatron" in named) == (model not in NO_FLAGS)
    assert ("flagscale" in named) == (model not in NO_FLAGS)
    for version in ("0.2.2", "0.3.0"):
        framework = next(item for item in VERSIONS if (item.name, item.version) == ("torchtitan", version))
        sharded = Cell(model, framework, "pp1-zero3", "equal")
        if model in TITAN_BOTH | TITAN[version]:
            assert files_of(sharded)
        else:
            with pytest.raises(TangramError, match=rf"no flavour of TorchTitan {version} is {model}"):
                files_of(sharded)
    if has_experts(load_model(model)):
        able = model in ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "kimi-k2.5")
        framework = next(item for item in VERSIONS if item.name == "deepspeed")
        spread = Cell(model, framework, "pp1-ep4-zero1", "equal")
        if able:
            assert '"autoep_size": 4' in files_of(spread)["ds_config.json"]
        else:
            with pytest.raises(TangramError, match="its AutoEP has no preset"):
                files_of(spread)
