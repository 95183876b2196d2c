"""Details of models that frameworks must be told: shipped files state them, and any file's are read."""

import json

import pytest

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import load_model
from tangram_sim.hwdb.huggingface import from_config
from tangram_sim.hwdb.model_section import model_from_dict, model_to_dict
from tangram_sim.hwdb.models import model_names
from tangram_sim.models import Experts

WITHOUT_ROTATION = ("bloom-", "nemotron-h-56b")  # slopes on attention scores; mixers know the order
TINY = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


@pytest.mark.parametrize("name", model_names())
def test_every_shipped_model_with_rotary_positions_states_its_base_and_norm_epsilon(name: str) -> None:
    model = load_model(name)
    if not model.positions and not name.startswith(WITHOUT_ROTATION):
        assert model.rotary_base > 1 and 0 < model.norm_epsilon < 1e-4
    if any(isinstance(block.feed_forward, Experts) for block in model.blocks) and not model.positions:
        assert model.details.router_score in ("softmax", "sigmoid")


@pytest.mark.parametrize(
    ("name", "base", "epsilon", "details"),
    [
        ("llama3-8b", 5e5, 1e-5, {"scaling_type": "llama3"}),
        ("qwen3-30b-a3b", 1e6, 1e-6, {"router_score": "softmax", "router_renormalised": True}),
        (
            "glm-4.5-air",
            1e6,
            1e-5,
            {"rotary_share": 0.5, "router_score": "sigmoid", "router_correction": True},
        ),
        (
            "deepseek-v3",
            1e4,
            1e-6,
            {"router_groups": 8, "router_groups_kept": 4, "router_scale": 2.5, "scaling_type": "yarn"},
        ),
        (
            "deepseek-v2",
            1e4,
            1e-6,
            {"router_score": "softmax", "router_renormalised": False, "router_scale": 16.0},
        ),
        ("deepseek-v3.2", 1e4, 1e-6, {"router_groups": 8, "router_scale": 2.5, "scaling_type": "yarn"}),
        ("kimi-k2.5", 5e4, 1e-5, {"router_scale": 2.827, "router_groups": 1, "router_correction": True}),
        ("minimax-m2.5", 5e6, 1e-6, {"rotary_share": 0.5, "router_correction": True}),
        ("gpt-oss-120b", 1.5e5, 1e-5, {"sinks": True, "activation_limit": 7.0, "router_correction": False}),
        ("gpt-j-6b", 1e4, 1e-5, {"rotary_share": 0.25}),
        ("gpt-neox-20b", 1e4, 1e-5, {"rotary_share": 0.25}),
        ("gemma3-12b", 1e6, 1e-6, {"local_rotary_base": 1e4, "zero_centred_norms": True}),
        ("llama4-scout", 5e5, 1e-5, {"chunked": True, "rope_free_every": 4, "query_key_l2_norm": True}),
        ("llama4-maverick", 5e5, 1e-5, {"query_key_l2_norm": False}),
    ],
)
def test_shipped_models_say_what_their_publishers_do(name, base, epsilon, details) -> None:
    model = load_model(name)
    assert (model.rotary_base, model.norm_epsilon) == (base, epsilon)
    assert {key: getattr(model.details, key) for key in details} == details


# Read on 2026-11-27, flag by flag, from scripts that others train these models with, none of which our rows
# come from: NVIDIA/Megatron-LM, examples/post_training/modelopt/conf, at the commit named.
READ_ELSEWHERE = {
    "llama3-8b": ("b3704bfb meta-llama/Llama-3.1-8B-Instruct.sh", 5e5, {"scaling_type": "llama3"}),
    "qwen2.5-7b": ("e5f71ead Qwen/Qwen2.5-7B-Instruct.sh", 1e6, {"rotary_share": 1.0}),
    "qwen3-8b": ("550ed524 qwen/Qwen3-8B.sh", 1e6, {"rotary_share": 1.0}),
    "qwen3-30b-a3b": ("e5f71ead Qwen/Qwen3-30B-A3B.sh", 1e6, {"auxiliary_loss": 1e-3}),
    "deepseek-v3": (
        "be37e2c9 deepseek-ai/DeepSeek-R1.sh",
        1e4,
        {
            "router_score": "sigmoid",
            "router_correction": True,
            "router_groups": 8,
            "router_groups_kept": 4,
            "router_scale": 2.5,
            "auxiliary_loss_by_sequence": True,
            "factor": 40.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    ),
    "deepseek-v2-lite": (
        "d002453c deepseek-ai/DeepSeek-V2-Lite.sh",
        1e4,
        {
            "router_score": "softmax",
            "router_scale": 1.0,
            "auxiliary_loss": 1e-3,
            "auxiliary_loss_by_sequence": True,
            "factor": 40.0,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
        },
    ),
    # Of Kimi-K2, whose router and rotary base K2.5 keeps; its scaling reaches twice as far.
    "kimi-k2.5": (
        "52c2bdfd moonshotai/Kimi-K2-Instruct.sh",
        5e4,
        {"router_score": "sigmoid", "router_correction": True, "router_scale": 2.827, "mscale": 1.0},
    ),
    "gpt-oss-120b": (
        "346696ae openai/gpt-oss-120b.sh",
        1.5e5,
        {"sinks": True, "activation_limit": 7.0, "router_score": "softmax"},
    ),
    "llama4-scout": (
        "154a7a80 meta-llama/Llama-4-Scout-17B-16E-Instruct.sh",
        5e5,
        {"router_score": "sigmoid", "query_key_l2_norm": True, "auxiliary_loss": 1e-3},
    ),
}


@pytest.mark.parametrize("name", READ_ELSEWHERE)
def test_details_are_those_of_scripts_that_others_train_with(name: str) -> None:
    _, base, details = READ_ELSEWHERE[name]
    model = load_model(name)
    assert model.rotary_base == base
    for key, value in details.items():
        known = hasattr(model.details, key)
        assert (getattr(model.details, key) if known else model.details.scaling(key)) == value, key


@pytest.mark.parametrize("name", model_names())
def test_a_plan_file_keeps_every_detail(name: str) -> None:
    model = load_model(name)
    assert model_from_dict(json.loads(json.dumps(model_to_dict(model))), "plan.json") == model


def test_scaling_is_read_under_either_name_of_the_key() -> None:
    numbers = {"factor": 8.0, "low_freq_factor": 1.0}
    old = from_config(TINY | {"rope_theta": 1e4, "rope_scaling": {"type": "llama3", **numbers}}, "c", "m")
    new = from_config(
        TINY | {"rope_parameters": {"rope_theta": 1e4, "rope_type": "llama3", **numbers}}, "c", "m"
    )
    assert old.details == new.details
    assert old.details.scaling_type == "llama3" and old.details.scaling("factor") == 8.0
    plain = from_config(TINY | {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}, "c", "m")
    assert not plain.details.scaling_type


@pytest.mark.parametrize(
    ("key", "value"),
    [("rope_scaling", 8), ("partial_rotary_factor", 2), ("rope_scaling", [1]), ("n_group", "many")],
)
def test_an_impossible_detail_names_its_key(key: str, value: object) -> None:
    config = {"model_type": "deepseek_v3", "num_hidden_layers": 4, key: value}
    with pytest.raises(BadInputError, match=key):
        from_config(config, "config.json", "m")
