"""Models: parameter counts against publishers and the public implementations, and the nouns' own laws."""

import pickle
import re
from pathlib import Path

import pytest

from tangram_sim.hwdb.huggingface import FAMILIES, from_config
from tangram_sim.hwdb.models import load_model, model_names, published
from tangram_sim.models import Attention, Block, Experts, FeedForward, Model
from tests.unit.hwdb.test_families import PUBLISHED

# What publishers state, as printed: (model, parameters, source).
STATED = [
    ("gpt2", 124e6, "openai/gpt-2 README"),
    ("gpt2-xl", 1558e6, "openai/gpt-2 README"),
    ("bert-base", 110e6, "arXiv:1810.04805, section 3"),
    ("gpt-neox-20b", 20_554_567_680, "arXiv:2204.06745, section 2.1"),
    ("gpt3-39b", 39.1e9, "arXiv:2104.04473, table 1"),
    ("gpt3-76b", 76.1e9, "arXiv:2104.04473, table 1"),
    ("gpt3-145b", 145.6e9, "arXiv:2104.04473, table 1"),
    ("gpt3-175b", 174.6e9, "arXiv:2104.04473, table 2"),
    ("gpt3-310b", 310.1e9, "arXiv:2104.04473, table 1"),
    ("gpt3-530b", 529.6e9, "arXiv:2104.04473, table 1"),
    ("gpt3-1t", 1008.0e9, "arXiv:2104.04473, table 1"),
    ("gshard-moe-2.4b", 2_382_961_920, "compute_moe_parameter_count of alpa-projects/alpa"),
    ("gshard-moe-7.1b", 7_069_615_360, "compute_moe_parameter_count of alpa-projects/alpa"),
    ("gshard-moe-10b", 10_169_642_240, "compute_moe_parameter_count of alpa-projects/alpa"),
    ("llama3-405b", 405e9, "arXiv:2407.21783, abstract"),
    ("mixtral-8x7b", 46.7e9, "Mistral AI's announcement of Mixtral 8x7B"),
    ("mixtral-8x22b", 141e9, "Mistral AI's announcement of Mixtral 8x22B"),
    ("qwen2.5-7b", 7.61e9, "model card of Qwen/Qwen2.5-7B"),
    ("qwen2.5-72b", 72.7e9, "model card of Qwen/Qwen2.5-72B"),
    ("qwen3-8b", 8.2e9, "model card of Qwen/Qwen3-8B"),
    ("qwen3-32b", 32.8e9, "model card of Qwen/Qwen3-32B"),
    ("qwen3-30b-a3b", 30.5e9, "model card of Qwen/Qwen3-30B-A3B"),
    ("qwen3-235b-a22b", 235e9, "model card of Qwen/Qwen3-235B-A22B"),
    ("deepseek-v2", 236e9, "arXiv:2405.04434, abstract"),
    ("deepseek-v2-lite", 15.7e9, "arXiv:2405.04434, appendix B"),
    ("deepseek-v3", 671e9, "arXiv:2412.19437, abstract"),
    ("gemma2-2b", 590_118_912 + 2_024_517_888, "arXiv:2408.00118, table 2"),
    ("gemma2-9b", 917_962_752 + 8_324_201_984, "arXiv:2408.00118, table 2"),
    ("gemma2-27b", 1_180_237_824 + 26_047_480_320, "arXiv:2408.00118, table 2"),
    ("gemma3-1b", 302e6 + 698e6, "arXiv:2503.19786, table 1"),
    ("gemma3-4b", 675e6 + 3209e6, "arXiv:2503.19786, table 1"),
    ("gemma3-12b", 1012e6 + 10759e6, "arXiv:2503.19786, table 1"),
    ("gemma3-27b", 1416e6 + 25600e6, "arXiv:2503.19786, table 1"),
    ("gpt-oss-20b", 20.91e9, "arXiv:2508.10925, table 1"),
    ("gpt-oss-120b", 116.83e9, "arXiv:2508.10925, table 1"),
]

# Where publishers print a round figure only: the exact count of the public implementation (transformers
# 5.23, the causal language model built from the model's config on the meta device).
IMPLEMENTED = [
    ("llama2-7b", 6_738_415_616),
    ("llama2-13b", 13_015_864_320),
    ("llama2-70b", 68_976_648_192),
    ("llama3-8b", 8_030_261_248),
    ("llama3-70b", 70_553_706_496),
    ("llama3-405b", 405_853_388_800),
    ("mistral-7b", 7_241_732_096),
    ("mistral-nemo-12b", 12_247_782_400),
    ("mixtral-8x7b", 46_702_792_704),
    ("qwen3-30b-a3b", 30_532_122_624),
    ("deepseek-v2", 235_741_434_880),
    ("gemma2-2b", 2_614_341_888),
    ("phi3-mini", 3_821_079_552),
    ("phi3-medium", 13_960_238_080),
    ("gpt-oss-20b", 20_914_757_184),
    ("gpt2", 124_439_808),
    ("gpt2-xl", 1_557_611_200),
    ("gpt-neo-2.7b", 2_651_307_520),
    ("opt-350m", 331_196_416),
    ("opt-1.3b", 1_315_758_080),
    ("opt-13b", 12_853_473_280),
    ("opt-30b", 29_974_540_288),
    ("opt-66b", 65_719_701_504),
    ("falcon-7b", 6_921_720_704),
    ("falcon-40b", 41_303_293_952),
    ("falcon-180b", 178_557_088_768),
    ("bert-base", 110_106_428),
    ("bert-large", 336_226_108),
]

# (model, active parameters stated, is the input embedding counted, source). DeepSeek-V2-Lite's 2.4 B is left
# out: it is 2.45 B without the input embedding and 2.66 B with it.
ACTIVE = [
    ("mixtral-8x7b", 12.9e9, True, "Mistral AI's announcement of Mixtral 8x7B"),
    ("mixtral-8x22b", 39e9, True, "Mistral AI's announcement of Mixtral 8x22B"),
    ("qwen3-30b-a3b", 3.3e9, True, "model card of Qwen/Qwen3-30B-A3B"),
    ("qwen3-235b-a22b", 22e9, True, "model card of Qwen/Qwen3-235B-A22B"),
    ("deepseek-v2", 21e9, True, "arXiv:2405.04434, abstract"),
    ("deepseek-v3", 37e9, True, "arXiv:2412.19437, abstract"),
    ("gpt-oss-20b", 3.61e9, False, "arXiv:2508.10925, table 1"),
    ("gpt-oss-120b", 5.13e9, False, "arXiv:2508.10925, table 1"),
]


@pytest.mark.parametrize(("name", "stated", "source"), STATED, ids=[row[0] for row in STATED])
def test_count_is_within_half_a_percent_of_what_the_publisher_states(name: str, stated: float, source: str):
    assert load_model(name).parameters == pytest.approx(stated, rel=0.005), source


@pytest.mark.parametrize(("name", "count"), IMPLEMENTED, ids=[row[0] for row in IMPLEMENTED])
def test_count_equals_the_public_implementation_to_the_last_parameter(name: str, count: int):
    assert load_model(name).parameters == count


@pytest.mark.parametrize(("name", "stated", "embedding", "source"), ACTIVE, ids=[row[0] for row in ACTIVE])
def test_active_count_is_within_two_percent_of_what_the_publisher_states(
    name: str, stated: float, embedding: bool, source: str
):
    """Publishers differ in whether the input embedding counts as active; the table says which."""
    model = load_model(name)
    active = model.active_parameters - (0 if embedding else model.embedding_parameters)
    assert active == pytest.approx(stated, rel=0.02), source


# Tiny configs with unusual switches on, and what transformers 5.23 counts for them on the meta device.
SWITCHES = [
    (
        "llama",
        {"hidden_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3,
         "vocab_size": 100, "intermediate_size": 200, "tie_word_embeddings": True, "attention_bias": True,
         "mlp_bias": True},
        268368,
    ),
    (
        "mistral",
        {"hidden_size": 96, "num_attention_heads": 8, "num_key_value_heads": 1, "num_hidden_layers": 3,
         "vocab_size": 333, "intermediate_size": 200, "tie_word_embeddings": True},
        267648,
    ),
    (
        "mixtral",
        {"hidden_size": 96, "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 3,
         "vocab_size": 100, "intermediate_size": 64, "tie_word_embeddings": True, "num_local_experts": 4,
         "num_experts_per_tok": 1},
        301728,
    ),
    (
        "qwen2",
        {"hidden_size": 96, "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 6,
         "vocab_size": 333, "intermediate_size": 200, "tie_word_embeddings": True},
        545856,
    ),
    (
        "qwen3",
        {"hidden_size": 96, "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 1,
         "vocab_size": 100, "intermediate_size": 64, "tie_word_embeddings": True, "attention_bias": True},
        226816,
    ),
    (
        "qwen3_moe",
        {"hidden_size": 96, "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 6,
         "vocab_size": 100, "intermediate_size": 200, "tie_word_embeddings": True, "attention_bias": True,
         "num_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 2,
         "head_dim": 32},
        537696,
    ),
    (
        "deepseek_v2",
        {"hidden_size": 96, "num_attention_heads": 8, "num_hidden_layers": 3, "vocab_size": 333,
         "intermediate_size": 64, "tie_word_embeddings": True, "attention_bias": True, "n_routed_experts": 4,
         "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 2, "q_lora_rank": None,
         "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 24},
        332952,
    ),
    (
        "gemma2",
        {"hidden_size": 96, "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 6,
         "vocab_size": 333, "intermediate_size": 200, "head_dim": 16, "attention_bias": True},
        566016,
    ),
    (
        "gemma3_text",
        {"hidden_size": 96, "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 3,
         "vocab_size": 333, "intermediate_size": 64, "head_dim": 16, "attention_bias": True},
        181632,
    ),
    (
        "phi3",
        {"hidden_size": 96, "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 3,
         "vocab_size": 333, "intermediate_size": 64, "tie_word_embeddings": True},
        170880,
    ),
    (
        "gpt_oss",
        {"hidden_size": 96, "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 6,
         "vocab_size": 100, "intermediate_size": 200, "tie_word_embeddings": True, "head_dim": 32,
         "num_local_experts": 4, "num_experts_per_tok": 2},
        1779048,
    ),
    (
        "gpt2",
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": None, "vocab_size": 99, "n_positions": 64},
        110528,
    ),
    (
        "gpt_neo",
        {"hidden_size": 64, "num_layers": 4, "num_heads": 4, "vocab_size": 99, "max_position_embeddings": 64,
         "attention_types": [[["global", "local"], 2]]},
        209728,
    ),
    (
        "gpt_neox",
        {"hidden_size": 96, "num_attention_heads": 4, "num_hidden_layers": 6, "vocab_size": 333,
         "intermediate_size": 64, "tie_word_embeddings": True},
        332640,
    ),
    (
        "opt",
        {"hidden_size": 64, "ffn_dim": 100, "num_hidden_layers": 2, "num_attention_heads": 4,
         "vocab_size": 99, "max_position_embeddings": 50, "word_embed_proj_dim": 32,
         "do_layer_norm_before": False, "enable_bias": False, "layer_norm_elementwise_affine": False},
        68960,
    ),
    (
        "falcon",
        {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 99, "bias": True,
         "tie_word_embeddings": False, "parallel_attn": False, "ffn_hidden_size": None},
        98208,
    ),
    (
        "bert",
        {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99,
         "intermediate_size": 100, "max_position_embeddings": 33},
        77101,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("family", "facts", "count"), SWITCHES, ids=[row[0] for row in SWITCHES])
def test_unusual_switches_count_like_the_public_implementation(family: str, facts: dict, count: int):
    """Biases, tied heads, narrow embeddings and sparse steps: what no shipped model exercises."""
    assert from_config({"model_type": family, **facts}, "config.json", "tiny").parameters == count


def test_every_shipped_model_loads_and_says_where_it_is_from():
    names = model_names()
    assert len(names) >= 60
    for name in names:
        model = load_model(name)
        assert model.name == name
        assert model.layers > 0
        assert model.source, name
        assert not Path(model.source).is_absolute(), name


def test_published_counts_in_the_files_carry_a_source_and_agree():
    """A data file cannot claim a size its own layers do not have."""
    stated = [name for name in model_names() if "published_parameters" in published(name)]
    assert len(stated) >= 45
    for name in stated:
        facts = published(name)
        assert facts["published_source"], name
        assert load_model(name).parameters == pytest.approx(facts["published_parameters"], rel=0.005), name


def test_models_of_the_tangram_paper_have_the_paper_s_shapes():
    gpt = load_model("gpt3-6.7b")
    assert (gpt.layers, gpt.hidden, gpt.vocab, gpt.max_seq, gpt.tied) == (32, 4096, 51200, 2048, True)
    assert gpt.blocks[0].attention.heads == 32
    larger = load_model("gpt3-13b")
    assert (larger.layers, larger.hidden, larger.blocks[0].attention.heads) == (40, 5120, 40)
    gshard = load_model("gshard-moe-7.1b")
    assert (gshard.layers, gshard.hidden, gshard.vocab) == (16, 1280, 32000)
    kinds = [isinstance(block.feed_forward, Experts) for block in gshard.blocks]
    assert kinds == [False, True] * 8
    assert load_model("mixtral-8x7b-16l").layers * 2 == load_model("mixtral-8x7b").layers
    assert load_model("qwen3-30b-a3b-24l").layers * 2 == load_model("qwen3-30b-a3b").layers


def test_blocks_of_the_peers_models_weigh_what_the_peers_profile_says():
    """Sailor's llm_info.json counts 12,596,224 and 78,676,480 parameters in one transformer layer."""
    for name, count in (("opt-350m-sailor", 12_596_224), ("gpt-neo-2.7b-sailor", 78_676_480)):
        model = load_model(name)
        assert model.blocks[0].parameters(model.hidden) == count


def test_sliding_windows_alternate_as_the_families_do():
    def windows(name: str) -> list[int]:
        return [block.attention.window for block in load_model(name).blocks]

    assert windows("gemma2-9b") == [4096, 0] * 21
    assert windows("gemma3-1b") == ([512] * 5 + [0]) * 4 + [512] * 2
    assert windows("gpt-oss-20b") == [128, 0] * 12
    assert windows("gpt-neo-2.7b") == [0, 256] * 16
    assert set(windows("mistral-7b")) == {4096}
    assert set(windows("mistral-nemo-12b")) == {0}
    assert set(windows("qwen2.5-7b")) == {0}


def test_dense_first_layers_and_shared_experts_of_deepseek():
    model = load_model("deepseek-v3")
    dense = [isinstance(block.feed_forward, FeedForward) for block in model.blocks]
    assert dense == [True] * 3 + [False] * 58
    experts = model.blocks[-1].feed_forward
    assert isinstance(experts, Experts)
    assert (experts.experts, experts.active, experts.shared_width) == (256, 8, 2048)
    attention = model.blocks[0].attention
    assert (attention.head_dim, attention.value_dim, attention.rope_dim) == (192, 128, 64)
    assert load_model("deepseek-v2-lite").blocks[0].attention.query_rank == 0


def test_loading_twice_gives_equal_models_with_equal_hashes(tmp_path: Path):
    """Prices are cached by model: an equal model must find them, in this process and in workers."""
    text = '{"model_type": "llama", "num_hidden_layers": 4}'
    (tmp_path / "config.json").write_text(text)
    first, second = load_model(str(tmp_path)), load_model(str(tmp_path / "config.json"))
    assert first is not second
    assert first == second
    assert hash(first) == hash(second)
    assert {first: "price"}[second] == "price"
    again = pickle.loads(pickle.dumps(first))
    assert again == first
    assert hash(again) == hash(first)
    assert load_model("gpt2") != load_model("gpt2-xl")


def test_equal_blocks_are_one_object():
    """Runs of equal layers are compared often; identity makes that free."""
    assert len({id(block) for block in load_model("llama3-405b").blocks}) == 1
    assert len({id(block) for block in load_model("gemma2-2b").blocks}) == 2


@pytest.mark.parametrize("name", ["gpt3-6.7b", "llama3-8b", "opt-350m", "bert-base", "deepseek-v3"])
def test_parts_add_up_to_the_whole(name: str):
    model = load_model(name)
    parts = model.embedding_parameters + model.head_parameters_total
    parts += sum(block.parameters(model.hidden) for block in model.blocks)
    assert parts - (model.vocabulary_parameters if model.tied else 0) == model.parameters
    assert model.head_parameters_total == model.head_only_parameters + model.vocabulary_parameters


def test_hand_counted_block():
    """A block small enough to count by hand: 2 heads of 3 on 1 key/value head, hidden 6."""
    attention = Attention(heads=2, kv_heads=1, head_dim=3, value_dim=3, qkv_bias=True, out_bias=True)
    assert attention.parameters(6) == 6 * 6 + 2 * (6 * 3) + 6 * 6 + (6 + 3 + 3) + 6
    assert FeedForward(10, gated=True, bias=True).parameters(6) == 3 * 60 + 10 + 10 + 6
    experts = Experts(experts=4, active=2, width=10, gated=False, shared_width=5, shared_gate=True)
    assert experts.expert_parameters(6) == 4 * 2 * 60
    assert experts.parameters(6) == 4 * 120 + 4 * 6 + 2 * 30 + 6
    assert experts.active_parameters(6) == 2 * 120 + 4 * 6 + 2 * 30 + 6
    block = Block(attention, experts, norms=2, norm_bias=True)
    assert block.parameters(6) == attention.parameters(6) + experts.parameters(6) + 2 * 12
    assert block.parameters(6) - block.active_parameters(6) == 2 * 120


def test_dense_models_are_wholly_active():
    model = Model("m", "test", 6, 10, (Block(Attention(2, 2, 3, 3), FeedForward(4)),))
    assert model.active_parameters == model.parameters


def test_every_family_is_shipped_or_a_wrapper():
    """No family is readable without a model that exercises it: a shipped one, or one of published size."""
    read = {load_model(name).family for name in model_names()} | {
        facts["model_type"] for facts, _, _ in PUBLISHED.values()
    }
    assert read >= set(FAMILIES) - {"gemma3", "glm4", "kimi_k25", "llama4_text", "deepseek_v32"}


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("nemotron3-super-120b-a12b", 120e9, 12e9),
        ("nemotron3-nano-30b-a3b", 31.6e9, 3.6e9),
        ("nemotron-h-56b", 56e9, 56e9),
    ],
)
def test_mixers_and_latent_experts_weigh_what_their_publisher_says(
    name: str, total: float, active: float
) -> None:
    """Sizes in the names of the checkpoints; Nemotron 3 Nano's model card says 31.6B, 3.6B active."""
    model = load_model(name)
    assert model.parameters == pytest.approx(total, rel=0.01)
    assert model.active_parameters == pytest.approx(active, rel=0.07)


STATED_OTHERWISE = {"falcon3-1b": 1.67e9}  # its model card; other names round by a third at most


@pytest.mark.parametrize("name", model_names())
def test_a_size_in_the_name_of_a_shipped_model_is_its_size(name: str) -> None:
    """Models without a published count have one in their name; copies cut to fewer layers do not."""
    sizes = [found for word in name.split("-") if (found := re.fullmatch(r"(\d+(?:\.\d+)?)([mb])", word))]
    if len(sizes) == 1 and not re.search(r"-\d+l$", name) and "published_parameters" not in published(name):
        stated = float(sizes[0][1]) * {"m": 1e6, "b": 1e9}[sizes[0][2]]
        expected = STATED_OTHERWISE.get(name, stated)
        assert load_model(name).parameters == pytest.approx(expected, rel=0.3), name
