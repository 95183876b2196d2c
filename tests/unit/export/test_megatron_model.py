"""Models in Megatron-LM's arguments: what is trained has the parameters that were priced."""

import pytest

from tangram_sim.errors import BadInputError
from tangram_sim.export.megatron_model import model_words
from tangram_sim.hwdb import load_model
from tangram_sim.hwdb.huggingface import from_config
from tangram_sim.hwdb.model_section import model_from_dict, model_to_dict

GPT = {"--normalization": "LayerNorm", "--position-embedding-type": "learned_absolute"}
LLAMA = {"--normalization": "RMSNorm", "--position-embedding-type": "rope", "--disable-bias-linear": None}
SWITCHES = {
    *("--swiglu", "--disable-bias-linear", "--add-qkv-bias", "--untie-embeddings-and-output-weights"),
    *("--qk-layernorm", "--group-query-attention", "--multi-latent-attention", "--squared-relu"),
    *("--use-rope-scaling", "--moe-grouped-gemm", "--moe-router-enable-expert-bias"),
}


@pytest.mark.parametrize(
    ("name", "has", "has_not"),
    [
        ("gpt3-1.3b", GPT, {"--swiglu", "--disable-bias-linear", "--untie-embeddings-and-output-weights"}),
        (
            "llama3-8b",
            {
                **LLAMA,
                "--swiglu": None,
                "--num-query-groups": 8,
                "--untie-embeddings-and-output-weights": None,
            },
            {"--add-qkv-bias", "--qk-layernorm"},
        ),
        ("qwen2.5-7b", {**LLAMA, "--add-qkv-bias": None, "--swiglu": None}, {"--qk-layernorm"}),
        (
            "qwen3-30b-a3b",
            {**LLAMA, "--qk-layernorm": None, "--num-experts": 128, "--moe-router-topk": 8},
            {"--moe-layer-freq"},
        ),
        (
            "deepseek-v3",
            {
                **LLAMA,
                "--multi-latent-attention": None,
                "--kv-lora-rank": 512,
                "--q-lora-rank": 1536,
                "--qk-head-dim": 128,
                "--qk-pos-emb-head-dim": 64,
                "--v-head-dim": 128,
                "--moe-layer-freq": "([0]*3+[1]*58)",
                "--moe-shared-expert-intermediate-size": 2048,
                "--ffn-hidden-size": 18432,
                "--moe-ffn-hidden-size": 2048,
            },
            {"--kv-channels", "--group-query-attention"},
        ),
    ],
)
def test_what_differs_from_gpt_is_written(name: str, has: dict[str, object], has_not: set[str]) -> None:
    words, _ = model_words(load_model(name))
    assert {flag: words.get(flag, "absent") for flag in has} == has
    assert not has_not & words.keys()
    assert {flag for flag, value in words.items() if value is None} <= SWITCHES


def test_the_base_of_rotary_embeddings_is_written_where_a_file_says_it() -> None:
    config = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2}
    for said in ({"rope_theta": 500000.0}, {"rope_parameters": {"rope_theta": 500000.0}}):
        words, notes = model_words(from_config(config | said, "m", "m"))
        assert words["--rotary-base"] == 500000
        assert not any("rope_theta" in note for note in notes)
    words, notes = model_words(from_config(config, "m", "m"))
    assert "--rotary-base" not in words
    assert any("`rope_theta`" in note for note in notes)


@pytest.mark.parametrize("key", ["rms_norm_eps", "layer_norm_epsilon", "norm_eps"])
def test_what_norms_add_is_written_where_a_file_says_it_and_read_back_from_a_plan(key: str) -> None:
    facts = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
    facts |= {"num_attention_heads": 4, "vocab_size": 1000}
    model = from_config({**facts, key: 1e-6}, "tiny", "config.json")
    words, notes = model_words(model)
    assert words["--norm-epsilon"] == 1e-6 and not any("rms_norm_eps" in note for note in notes)
    assert model_from_dict(model_to_dict(model), "plan.json").norm_epsilon == 1e-6
    words, notes = model_words(from_config(facts, "tiny", "config.json"))
    assert "--norm-epsilon" not in words
    assert any("what its norms add" in note and "`--norm-epsilon`" in note for note in notes)
    with pytest.raises(BadInputError, match=f"{key}.*above 0 and below 1"):
        from_config({**facts, key: 2}, "tiny", "config.json")
