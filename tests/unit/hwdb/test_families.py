"""Families whose config.json is read beyond those of shipped models: counts against the published ones.

The published figures are those of the model cards and papers named, rounded as printed there, or the sum over
the checkpoint's tensors. Read in public copies:

- to the last parameter: OLMo 2 7B and 13B, phi-4, StarCoder2-15B (the hub's counters, copied into others'
  tables), GLM-4-9B (the count a fine-tuning log prints), Kimi-K2 (a checkpoint's tensors, and its counter);
- as published: Command-R (35e9), Command-R+ (104e9) and Command-A (111e9) on their cards, StarCoder2-3B
  (3.03e9) by the hub's counter, Llama-4-Maverick (400e9) in Hugging Face's post on its release, Qwen1.5-MoE
  (14.3e9, 2.7e9 of them active) on a copy of its card, Qwen3-Next (80e9) by the hub's counter;
- whole configs of Qwen2-57B-A14B and of Nemotron-4-4B, whose shape Minitron-4B has (TensorRT-LLM's tests);
  the dimensions of Qwen1.5-MoE, Kimi-K2, StarCoder2-15B and Llama-4-Maverick in others' code; that
  StarCoder2-3B ties its embeddings (bigcode-project/starcoder2, issue 18);
- as others print them: Mistral-Small-3.1's text model (23.57 B, llama-bench of files of 24B), Qwen2-57B's
  57.4 B (a survey of mixtures; its dimensions in llama.cpp's log, ggml-org/llama.cpp, issue 7813).

Recalled, not read anywhere: Minitron-4B's 4.19e9; its widths (3,072 and 9,216, 32 heads) are on its card.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb.huggingface import FAMILIES, from_config
from tests.commands import tangram

PUBLISHED: dict[str, tuple[dict[str, Any], float, str]] = {
    "OLMo-2-1124-7B": (
        {
            "model_type": "olmo2",
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 32,
            "vocab_size": 100352,
        },
        7298617344.0,
        "the hub's counter (safetensors metadata), equal to the last parameter; arXiv:2501.00656",
    ),
    "OLMo-2-1124-13B": (
        {
            "model_type": "olmo2",
            "hidden_size": 5120,
            "intermediate_size": 13824,
            "num_attention_heads": 40,
            "num_hidden_layers": 40,
            "num_key_value_heads": 40,
            "vocab_size": 100352,
        },
        13716198400.0,
        "the hub's counter, equal to the last parameter; arXiv:2501.00656",
    ),
    "phi-4": (
        {
            "model_type": "phi3",
            "hidden_size": 5120,
            "intermediate_size": 17920,
            "num_attention_heads": 40,
            "num_hidden_layers": 40,
            "num_key_value_heads": 10,
            "vocab_size": 100352,
        },
        14659507200.0,
        "the hub's counter, equal to the last parameter; arXiv:2412.08905",
    ),
    "glm-4-9b-chat-hf": (
        {
            "model_type": "glm",
            "hidden_size": 4096,
            "intermediate_size": 13696,
            "num_attention_heads": 32,
            "num_hidden_layers": 40,
            "num_key_value_heads": 2,
            "vocab_size": 151552,
            "head_dim": 128,
            "attention_bias": True,
        },
        9399951360.0,
        "a fine-tuning log of THUDM/glm-4-9b-chat: trainable parameters, to the last",
    ),
    "command-r": (
        {
            "model_type": "cohere",
            "hidden_size": 8192,
            "intermediate_size": 22528,
            "num_attention_heads": 64,
            "num_hidden_layers": 40,
            "num_key_value_heads": 64,
            "vocab_size": 256000,
        },
        35000000000.0,
        "card of CohereForAI/c4ai-command-r-v01",
    ),
    "command-r-plus": (
        {
            "model_type": "cohere",
            "hidden_size": 12288,
            "intermediate_size": 33792,
            "num_attention_heads": 96,
            "num_hidden_layers": 64,
            "num_key_value_heads": 8,
            "vocab_size": 256000,
            "use_qk_norm": True,
        },
        104000000000.0,
        "card of CohereForAI/c4ai-command-r-plus",
    ),
    "command-a": (
        {
            "model_type": "cohere2",
            "hidden_size": 12288,
            "intermediate_size": 36864,
            "num_attention_heads": 96,
            "num_hidden_layers": 64,
            "num_key_value_heads": 8,
            "vocab_size": 256000,
            "head_dim": 128,
        },
        111000000000.0,
        "card of CohereForAI/c4ai-command-a-03-2025",
    ),
    "starcoder2-3b": (
        {
            "model_type": "starcoder2",
            "hidden_size": 3072,
            "intermediate_size": 12288,
            "num_attention_heads": 24,
            "num_hidden_layers": 30,
            "num_key_value_heads": 2,
            "vocab_size": 49152,
        },
        3030000000.0,
        "card of bigcode/starcoder2-3b",
    ),
    "starcoder2-15b": (
        {
            "model_type": "starcoder2",
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_attention_heads": 48,
            "num_hidden_layers": 40,
            "num_key_value_heads": 4,
            "vocab_size": 49152,
            "tie_word_embeddings": False,
        },
        15957889024.0,
        "the hub's counter of bigcode/starcoder2-15b, equal to the last parameter",
    ),
    "minitron-4b": (
        {
            "model_type": "nemotron",
            "hidden_size": 3072,
            "intermediate_size": 9216,
            "num_attention_heads": 24,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 256000,
        },
        4190000000.0,
        "recalled; the card of nvidia/Minitron-4B-Base says 4B and its widths",
    ),
    "qwen1.5-moe": (
        {
            "model_type": "qwen2_moe",
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_attention_heads": 16,
            "num_hidden_layers": 24,
            "num_key_value_heads": 16,
            "vocab_size": 151936,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
        },
        14300000000.0,
        "card of Qwen/Qwen1.5-MoE-A2.7B",
    ),
    "qwen2-57b": (
        {
            "model_type": "qwen2_moe",
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_attention_heads": 28,
            "num_hidden_layers": 28,
            "num_key_value_heads": 4,
            "vocab_size": 151936,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 2560,
            "shared_expert_intermediate_size": 20480,
        },
        57400000000.0,
        "57.4B in a survey of mixtures; the card of Qwen/Qwen2-57B-A14B says 57B",
    ),
    "qwen3-next": (
        {
            "model_type": "qwen3_next",
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "num_hidden_layers": 48,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
            "head_dim": 256,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
        },
        80000000000.0,
        "card of Qwen/Qwen3-Next-80B-A3B-Instruct",
    ),
    "llama4-maverick": (
        {
            "model_type": "llama4",
            "text_config": {
                "hidden_size": 5120,
                "intermediate_size": 8192,
                "intermediate_size_mlp": 16384,
                "num_attention_heads": 40,
                "num_hidden_layers": 48,
                "num_key_value_heads": 8,
                "vocab_size": 202048,
                "num_local_experts": 128,
                "interleave_moe_layer_step": 2,
            },
        },
        400000000000.0,
        "card of meta-llama/Llama-4-Maverick-17B-128E, without vision",
    ),
    "kimi-k2": (
        {
            "model_type": "kimi_k2",
            "architectures": ["DeepseekV3ForCausalLM"],
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "num_attention_heads": 64,
            "num_key_value_heads": 64,
            "num_hidden_layers": 61,
            "vocab_size": 163840,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 384,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "first_k_dense_replace": 1,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
        },
        1026408232448.0,
        "tensors of moonshotai/Kimi-K2-Instruct's checkpoint, to the last",
    ),
    "mistral3": (
        {
            "model_type": "mistral3",
            "text_config": {
                "model_type": "mistral",
                "hidden_size": 5120,
                "intermediate_size": 32768,
                "num_attention_heads": 32,
                "num_hidden_layers": 40,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "vocab_size": 131072,
                "sliding_window": None,
            },
        },
        23570000000.0,
        "23.57 B, as llama-bench prints it, without vision; the card says 24B",
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_count_is_the_published_one_or_within_half_a_percent_of_a_rounded_one(name: str) -> None:
    facts, published, source = PUBLISHED[name]
    counted = from_config(facts, "config.json", name).parameters
    to_the_last = published % 1e6 > 0
    assert counted == published if to_the_last else counted == pytest.approx(published, rel=0.005), source


def test_active_parameters_are_those_in_the_names() -> None:
    """Llama-4-Maverick-17B, Qwen2-57B-A14B, Qwen1.5-MoE-A2.7B, Kimi-K2 (32 B)."""
    for name, active in (
        ("llama4-maverick", 17e9),
        ("qwen2-57b", 14e9),
        ("qwen1.5-moe", 2.7e9),
        ("kimi-k2", 32e9),
    ):
        found = from_config(PUBLISHED[name][0], "config.json", name).active_parameters
        assert found == pytest.approx(active, rel=0.03), name


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("mamba2", "state-space"),
        ("minimax", "lightning"),
        ("olmo3", "nearest: olmo2"),
        ("x" * 500, "llama"),
    ],
)
def test_other_families_are_refused_with_the_nearest_and_a_way_on(family: str, words: str) -> None:
    with pytest.raises(BadInputError, match=words) as refused:
        from_config({"model_type": family}, "config.json", "x")
    assert "tangram models template config.json" in str(refused.value)


def test_vision_models_of_unknown_families_are_read_by_their_language_model() -> None:
    text = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    outer = {"model_type": "some_vl", "text_config": text, "tie_word_embeddings": True}
    found = from_config(outer, "config.json", "x")
    assert (found.family, found.layers, found.tied) == ("llama", 2, True)


@pytest.mark.parametrize("name", ["command-r", "qwen2-57b", "llama4-maverick"])
def test_a_template_of_a_known_family_is_nearly_its_model(name: str, tmp_path: Path) -> None:
    """What a config says is carried over; what only the family knows (norms, shared experts) is left out."""
    facts = PUBLISHED[name][0]
    (tmp_path / "config.json").write_text(json.dumps({**facts, "model_type": "unheard-of"}))
    made = tangram("models", "template", tmp_path / "config.json", "-o", tmp_path / "model.yaml")
    if "num_experts_per_tok" not in json.dumps(facts) and "experts" in json.dumps(facts):
        assert "active: TODO" in (tmp_path / "model.yaml").read_text()
        assert tangram("models", "show", tmp_path / "model.yaml").code == 2
        return
    assert made.code == 0
    shown = tangram("models", "show", tmp_path / "model.yaml", "--json")
    assert shown.code == 0, shown.err
    exact = from_config(facts, "config.json", name)
    assert (shown.json["layers"], shown.json["hidden"]) == (exact.layers, exact.hidden)
    assert shown.json["parameters"] == pytest.approx(exact.parameters, rel=0.35)


def test_every_family_is_read_under_its_own_name() -> None:
    assert set(FAMILIES) == {name.lower() for name in FAMILIES}
