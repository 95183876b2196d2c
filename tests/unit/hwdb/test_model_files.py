"""Model files: Hugging Face config.json and model.yaml, defaults, errors that name file and key."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.hwdb.huggingface import FAMILIES, from_config
from tangram_sim.hwdb.model_file import from_model_file
from tangram_sim.hwdb.models import load_model
from tangram_sim.models import Experts, FeedForward, Model
from tests.unit.hwdb.test_families import PUBLISHED


def config(family: str, **facts: Any) -> Model:
    """A model of these facts; the depth, which every file must say, is that of the family's usual member."""
    depth = {"num_hidden_layers": DEFAULTS[family][1] if family in DEFAULTS else 32}
    if family == "nemotron_h":
        depth = {"num_hidden_layers": 2 * depth["num_hidden_layers"]}
    if family == "gemma3":
        facts = {"text_config": {}, **facts}
    if isinstance(facts.get("text_config"), dict):
        facts["text_config"] = depth | facts["text_config"]
    return from_config({"model_type": family, **depth, **facts}, "config.json", "test")


def model_file(text: str) -> Model:
    return from_model_file(yaml.safe_load(text), "model.yaml", "test")


# Hidden size, layers, heads, key/value heads, head size, vocabulary, tied: defaults of transformers 5.23.
DEFAULTS = {
    "bert": (768, 12, 12, 12, 64, 30522, True),
    "bloom": (64, 2, 8, 8, 8, 250880, True),
    "falcon": (4544, 32, 71, 1, 64, 65024, True),
    "gemma2": (2304, 26, 8, 4, 256, 256000, True),
    "gemma3": (2304, 26, 8, 4, 256, 262208, True),
    "gemma3_text": (2304, 26, 8, 4, 256, 262208, True),
    "gpt2": (768, 12, 12, 12, 64, 50257, True),
    "gpt_neo": (2048, 24, 16, 16, 128, 50257, True),
    "gpt_neox": (6144, 44, 64, 64, 96, 50432, False),
    "gpt_oss": (2880, 36, 64, 8, 64, 201088, False),
    "gptj": (4096, 28, 16, 16, 256, 50400, False),
    "llama": (4096, 32, 32, 32, 128, 32000, False),
    "mistral": (4096, 32, 32, 8, 128, 32000, False),
    "mixtral": (4096, 32, 32, 8, 128, 32000, False),
    "opt": (768, 12, 12, 12, 64, 50272, True),
    "phi3": (3072, 32, 32, 32, 96, 32064, False),
    "qwen2": (4096, 32, 32, 32, 128, 151936, False),
    "qwen3": (4096, 32, 32, 32, 128, 151936, False),
    "qwen3_moe": (2048, 24, 32, 4, 64, 151936, False),
    "deepseek_v3": (7168, 61, 128, 128, 192, 129280, False),
    # Not in transformers 5.23, or with defaults of no model: those of the shipped model of the family.
    "glm4_moe": (4096, 46, 96, 8, 128, 151552, False),
    "glm_moe_dsa": (7168, 61, 128, 128, 192, 154880, False),
    "granite": (4096, 32, 32, 32, 128, 32000, False),
    "deepseek_v32": (7168, 61, 128, 128, 192, 154880, False),
    "nemotron_h": (4096, 26, 8, 8, 128, 131072, False),  # the first block is a mixer; a block is two layers
    "kimi_k25": (7168, 61, 128, 128, 192, 129280, False),
    "minimax_m2": (3072, 62, 48, 8, 128, 200064, False),
    "qwen3_5": (4096, 32, 16, 16, 128, 248320, False),  # the first block is a linear one, as below
    "qwen3_5_moe": (4096, 60, 16, 16, 128, 248320, False),  # the first block is a linear one
}


@pytest.mark.parametrize("family", sorted(DEFAULTS))
def test_missing_keys_take_the_family_s_defaults(family: str):
    model = config(family)
    attention = model.blocks[0].attention
    shape = (model.hidden, model.layers, attention.heads, attention.kv_heads, attention.head_dim)
    assert (*shape, model.vocab, model.tied) == DEFAULTS[family]


def test_every_family_s_defaults_are_tested():
    """Or a config.json with every key was held to a published size, its defaults being nobody's model."""
    read = {facts["model_type"] for facts, _, _ in PUBLISHED.values()}
    # No default for the experts per token; glm4 is read as glm, llama4_text is what llama4 wraps.
    assert set(FAMILIES) - set(DEFAULTS) - read == {"deepseek_v2", "glm4", "llama4_text"}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"model_type": "llama", "hidden_size": -4096}, ["hidden_size", "-4096", "positive whole number"]),
        ({"model_type": "llama", "hidden_size": 0}, ["hidden_size", "positive whole number"]),
        ({"model_type": "llama", "hidden_size": 4096.5}, ["hidden_size", "4096.5", "whole number"]),
        ({"model_type": "llama", "hidden_size": "4096"}, ["hidden_size", '"4096"', "whole number"]),
        ({"model_type": "llama", "hidden_size": True}, ["hidden_size", "true", "whole number"]),
        ({"model_type": "llama", "hidden_size": None}, ["hidden_size", "null", "whole number"]),
        ({"model_type": "llama", "num_hidden_layers": 10**9}, ["num_hidden_layers", "at most 10000"]),
        ({"model_type": "llama", "vocab_size": 10**15}, ["vocab_size", "at most"]),
        ({"model_type": "llama", "num_attention_heads": 7}, ["num_attention_heads", "7", "4096", "divisor"]),
        ({"model_type": "gpt2", "n_head": 5}, ["n_head", "768", "divisor"]),
        ({"model_type": "llama", "num_key_value_heads": 5}, ["num_key_value_heads", "divisor of 32"]),
        ({"model_type": "mistral", "num_attention_heads": 4}, ["num_key_value_heads", "8 by default"]),
        ({"model_type": "llama", "tie_word_embeddings": "yes"}, ["tie_word_embeddings", "true or false"]),
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, ["num_experts_per_tok", "from 1 to 8"]),
        ({"model_type": "deepseek_v2"}, ["num_experts_per_tok", "missing"]),
        ({"model_type": "qwen2", "layer_types": ["full_attention"]}, ["layer_types", "32 entries"]),
        ({"model_type": "gemma2", "layer_types": ["chunked"] * 26}, ["layer_types", '"chunked"']),
        ({"model_type": "qwen3_moe", "mlp_only_layers": "0"}, ["mlp_only_layers", "list of layer numbers"]),
        ({"model_type": "gpt_neo", "attention_types": [[["global"], 3]]}, ["attention_types", "24 layers"]),
        ({"model_type": "gpt_neo", "attention_types": 3}, ["attention_types", "24 layers"]),
        ({"model_type": "gemma3", "text_config": {"hidden_size": -1}}, ["text_config", "hidden_size"]),
        ({"model_type": "gemma3", "text_config": 3}, ["text_config", "object"]),
        ({"model_type": "gpt2", "add_cross_attention": True}, ["add_cross_attention", "encoder-decoder"]),
        ({"model_type": "bert", "is_decoder": True}, ["is_decoder"]),
        ({"model_type": "t5"}, ["model_type", "t5", "llama", "qwen3_moe", "model.yaml"]),
        ({"model_type": ["llama"]}, ["model_type", "known families"]),
        ({"hidden_size": 4096}, ["model_type is missing", "known families"]),
    ],
)
def test_impossible_config_is_refused_naming_file_key_and_expectation(
    tmp_path: Path, facts: dict[str, Any], words: list[str]
):
    path, depth = tmp_path / "config.json", DEFAULTS.get(str(facts.get("model_type")), (0, 32))[1]
    path.write_text(json.dumps({"num_hidden_layers": depth} | facts))
    with pytest.raises(BadInputError) as caught:
        load_model(str(path))
    for word in [str(path), *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "3", "{", '{"model_type": "llama"', "\x00"])
def test_a_file_that_is_no_config_is_refused_by_name(tmp_path: Path, text: str):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(BadInputError, match=r"config\.json"):
        load_model(str(path))


def test_window_of_qwen2_starts_at_max_window_layers():
    model = config("qwen2", use_sliding_window=True, sliding_window=100, max_window_layers=30)
    assert [block.attention.window for block in model.blocks] == [0] * 30 + [100] * 2
    assert {block.attention.window for block in config("qwen2", sliding_window=100).blocks} == {0}


def test_layer_types_decide_over_the_family_s_pattern():
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    model = config("gemma3_text", num_hidden_layers=3, layer_types=kinds, sliding_window=64)
    assert [block.attention.window for block in model.blocks] == [0, 64, 0]


def test_gemma3_wrapper_is_its_text_model():
    text = {"hidden_size": 640, "num_hidden_layers": 7, "num_attention_heads": 4, "num_key_value_heads": 1}
    wrapped = config(
        "gemma3", text_config={**text, "model_type": "gemma3_text"}, vision_config={"hidden_size": 9}
    )
    assert wrapped.blocks == config("gemma3_text", **text).blocks
    assert wrapped.parameters == config("gemma3_text", **text).parameters


def test_head_dim_overrides_the_quotient():
    assert config("mistral", head_dim=64).blocks[0].attention.head_dim == 64
    assert config("llama", num_attention_heads=24, head_dim=128).blocks[0].attention.head_dim == 128


def test_experts_are_placed_where_the_file_says():
    def sparse(model: Model) -> list[int]:
        return [layer for layer, block in enumerate(model.blocks) if isinstance(block.feed_forward, Experts)]

    assert sparse(config("qwen3_moe", num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3])) == [
        1,
        5,
    ]
    assert sparse(config("deepseek_v3", num_hidden_layers=8, first_k_dense_replace=3, moe_layer_freq=2)) == [
        4,
        6,
    ]
    assert sparse(config("deepseek_v2", n_routed_experts=None)) == []


def test_folder_and_file_give_the_folder_s_name(tmp_path: Path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    with pytest.raises(BadInputError, match=r"neither config\.json nor model\.yaml"):
        load_model(str(folder))
    (folder / "config.json").write_text('{"model_type": "gpt2", "n_layer": 12}')
    assert load_model(str(folder)).name == load_model(str(folder / "config.json")).name == "my-model"
    (tmp_path / "other.json").write_text('{"model_type": "gpt2", "n_layer": 12}')
    assert load_model(str(tmp_path / "other.json")).name == "other"


def test_missing_file_and_wrong_kind_of_file_say_what_to_give(tmp_path: Path):
    with pytest.raises(BadInputError, match="no such file"):
        load_model(str(tmp_path / "absent.json"))
    (tmp_path / "weights.bin").write_bytes(b"\x00\xff")
    with pytest.raises(BadInputError, match=r"expected a \.json"):
        load_model(str(tmp_path / "weights.bin"))


PATTERN = """
name: demo
hidden: 64
vocab: 100
tied: true
norm: layernorm
layers:
  - count: 2
    attention: {heads: 4, kv_heads: 2, window: 16}
    feed_forward: {width: 256, gated: false}
  - repeat: 3
    layers:
      - attention: {heads: 4}
        feed_forward: {width: 256}
      - attention: {heads: 4, latent: {kv_rank: 8, rope_dim: 4}, head_dim: 20, value_dim: 16, qk_norm: true}
        experts: {count: 8, active: 2, width: 32, shared_width: 32, shared_gate: true}
"""


def test_model_yaml_lists_layers_and_patterns_in_order(tmp_path: Path):
    (tmp_path / "model.yaml").write_text(PATTERN)
    model = load_model(str(tmp_path / "model.yaml"))
    assert (model.name, model.hidden, model.vocab, model.tied, model.layers) == ("demo", 64, 100, True, 8)
    kinds = [type(block.feed_forward) for block in model.blocks]
    assert kinds == [FeedForward] * 2 + [FeedForward, Experts] * 3
    assert [block.attention.window for block in model.blocks] == [16] * 2 + [0] * 6
    latent = model.blocks[-1].attention
    assert (latent.kv_rank, latent.rope_dim, latent.head_dim, latent.value_dim) == (8, 4, 20, 16)
    assert latent.norm_parameters == 40
    assert all(block.norm_bias for block in model.blocks)


def test_the_same_model_as_json_and_yaml(tmp_path: Path):
    """JSON is accepted for a layer list too: tools write it more easily."""
    (tmp_path / "a.json").write_text(json.dumps(yaml.safe_load(PATTERN)))
    (tmp_path / "a.yaml").write_text(PATTERN)
    assert load_model(str(tmp_path / "a.json")).blocks == load_model(str(tmp_path / "a.yaml")).blocks


def test_model_yaml_can_describe_llama():
    """The two formats meet: the same shapes give the same count."""
    text = """
    {hidden: 4096, vocab: 32000, layers: [{count: 32, attention: {heads: 32}, feed_forward: {width: 11008}}]}
    """
    assert model_file(text).parameters == load_model("llama2-7b").parameters


LAYER = "attention: {heads: 4}, feed_forward: {width: 8}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{hidden: 64, layers: []}", ["vocab is missing"]),
        ("{hidden: 64, vocab: 9, layers: []}", ["layers", "at least one"]),
        ("{hidden: -1, vocab: 9, layers: [{LAYER}]}", ["hidden is -1", "greater than 0"]),
        ("{hidden: 6.5, vocab: 9, layers: [{LAYER}]}", ["hidden is 6.5", "whole number"]),
        ("{hidden: '64', vocab: 9, layers: [{LAYER}]}", ['hidden is "64"', "whole number"]),
        ("{hidden: 64, vocab: 9, hiden: 3, layers: [{LAYER}]}", ["hiden is not a known key", "hidden"]),
        (
            "{hidden: 66, vocab: 9, layers: [{LAYER}]}",
            ["layers[0].attention.heads is 4", "divisor of 66"],
        ),
        (
            "{hidden: 64, vocab: 9, layers: [{attention: {headz: 4}, feed_forward: {width: 8}}]}",
            ["layers[0].attention.headz is not a known key", "kv_heads"],
        ),
        (
            "{hidden: 8, vocab: 9, layers: [{attention: {heads: 4, kv_heads: 3}, feed_forward: {width: 8}}]}",
            ["layers[0].attention.kv_heads is 3", "divisor of 4"],
        ),
        (
            "{hidden: 64, vocab: 9, layers: [{attention: {heads: 4}}]}",
            ["layers[0]", "feed_forward or experts"],
        ),
        (
            "{hidden: 8, vocab: 9, layers: [{attention: {heads: 4}, "
            "experts: {count: 2, active: 3, width: 8}}]}",
            ["layers[0].experts.active is 3", "from 1 to 2"],
        ),
        (
            "{hidden: 64, vocab: 9, layers: [{repeat: 2, layers: [{attention: {heads: 4}}]}]}",
            ["layers[0].layers[0]", "feed_forward or experts"],
        ),
        ("{hidden: 64, vocab: 9, layers: [{repeat: 2, layers: 3}]}", ["layers[0].layers is 3"]),
        ("{hidden: 64, vocab: 9, layers: [3]}", ["layers[0] is 3", "keys with values"]),
        ("{hidden: 64, vocab: 9, layers: [{count: 9999, LAYER}, {count: 2, LAYER}]}", ["10001"]),
        (
            "{hidden: 64, vocab: 9, layers: [{attention: {heads: 4, latent: {kv_rank: 8, rope_dim: 32}}, "
            "feed_forward: {width: 8}}]}",
            ["layers[0].attention.latent.rope_dim is 32", "at most head_dim, 16"],
        ),
        ("[1, 2]", ["model.yaml"]),
        ("3", ["model.yaml"]),
    ],
)
def test_impossible_model_yaml_is_refused_naming_file_key_and_expectation(
    tmp_path: Path, text: str, words: list[str]
):
    path = tmp_path / "model.yaml"
    path.write_text(text.replace("LAYER", LAYER))
    with pytest.raises(BadInputError) as caught:
        load_model(str(path))
    for word in ["model.yaml", *words]:
        assert word in str(caught.value)


SIZES = ["hidden_size", "n_embd", "intermediate_size", "moe_intermediate_size", "vocab_size", "head_dim"]
SIZES += ["n_inner", "ffn_dim", "ffn_hidden_size", "word_embed_proj_dim", "sliding_window", "window_size"]
SIZES += ["kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "n_positions"]
COUNTS = ["num_hidden_layers", "n_layer", "num_layers", "num_attention_heads", "n_head", "num_heads"]
COUNTS += ["num_key_value_heads", "num_kv_heads", "num_local_experts", "num_experts", "num_experts_per_tok"]
COUNTS += ["n_routed_experts", "n_shared_experts", "first_k_dense_replace", "moe_layer_freq"]
COUNTS += ["decoder_sparse_step", "max_window_layers", "type_vocab_size", "num_ln_in_parallel_attn"]
COUNTS += ["sliding_window_pattern", "max_position_embeddings"]
FLAGS = ["tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window", "bias", "enable_bias"]
FLAGS += ["multi_query", "parallel_attn", "new_decoder_architecture", "do_layer_norm_before"]
ODD = ["layer_types", "attention_types", "mlp_only_layers", "text_config"]

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
sensible = st.fixed_dictionaries(
    {},
    optional={key: st.sampled_from([16, 32, 64, 96, 128]) for key in SIZES}
    | {key: st.sampled_from([1, 2, 4, 8]) for key in COUNTS}
    | {key: st.booleans() for key in FLAGS},
)
junked = st.dictionaries(st.sampled_from(SIZES + COUNTS + FLAGS + ODD), junk, max_size=2)


def check_model(model: Model) -> None:
    """What holds of every model that is let in."""
    assert model.layers > 0
    assert 0 < model.active_parameters <= model.parameters
    assert model.embedding_parameters >= model.vocabulary_parameters > 0
    assert isinstance(hash(model), int)
    for block in set(model.blocks):
        assert block.attention.heads % block.attention.kv_heads == 0
        assert block.attention.window >= 0


@settings(max_examples=400, deadline=None)
@given(family=st.sampled_from(sorted(FAMILIES)), facts=sensible, spoiled=junked)
def test_any_config_gives_a_model_or_an_error_meant_for_people(
    family: str, facts: dict[str, Any], spoiled: dict[str, Any]
):
    """Bad input never ends in a traceback, whatever the family."""
    facts = facts | spoiled
    inside = family == "gemma3" and "text_config" not in spoiled
    try:
        model = config(family, **({"text_config": facts} if inside else facts))
    except TangramError as error:
        assert "config.json" in str(error)
        return
    check_model(model)


@settings(max_examples=150, deadline=None)
@given(family=st.sampled_from(sorted(FAMILIES)), hidden=st.integers(1, 8), heads=st.sampled_from([1, 2, 4]))
def test_more_layers_add_equal_blocks(family: str, hidden: int, heads: int):
    """A count is linear in layers where all blocks are alike: twice the layers, twice the blocks' weight."""
    shape = {"hidden_size": 16 * hidden * heads, "num_attention_heads": heads, "num_key_value_heads": heads}
    shape |= {"num_kv_heads": heads, "num_experts_per_tok": 2, "first_k_dense_replace": 0}
    shape |= {"full_attention_interval": 1}
    small = config(family, **shape, num_hidden_layers=2, text_config=shape | {"num_hidden_layers": 2})
    large = config(family, **shape, num_hidden_layers=4, text_config=shape | {"num_hidden_layers": 4})
    block = small.blocks[0].parameters(small.hidden)
    assert large.parameters - small.parameters == (large.layers - small.layers) * block


few = st.integers(1, 4)
named = ["hidden", "vocab", "tied", "positions", "norm", "name", "final_norm", "source"]
layer = st.fixed_dictionaries(
    {"attention": st.fixed_dictionaries({"heads": st.sampled_from([1, 2, 3, 4]) | junk})},
    optional={
        "count": st.integers(1, 3) | junk,
        "feed_forward": st.fixed_dictionaries({"width": st.integers(1, 64)}) | junk,
        "experts": st.fixed_dictionaries({"count": few, "active": few, "width": st.just(8)}),
        "repeat": st.integers(1, 3) | junk,
    },
)


@settings(max_examples=300, deadline=None)
@given(
    layers=st.lists(layer, max_size=3) | junk,
    spoiled=st.dictionaries(st.sampled_from(named), junk, max_size=2),
)
def test_any_model_file_gives_a_model_or_an_error_meant_for_people(layers: Any, spoiled: dict[str, Any]):
    try:
        model = from_model_file({"hidden": 16, "vocab": 50, "layers": layers} | spoiled, "model.yaml", "test")
    except TangramError as error:
        assert "model.yaml" in str(error)
        return
    check_model(model)
