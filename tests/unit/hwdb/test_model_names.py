"""Names of models: shipped ones, those on the hub, variants of a checkpoint, and names of none."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.errors import TangramError, UnknownNameError
from tangram_sim.hwdb.models import load_model, model_names


@pytest.mark.parametrize("alias", ["meta-llama/Llama-3.1-8B", "LLAMA3-8B", "llama3.1-8b"])
def test_hub_ids_and_other_spellings_find_the_shipped_model(alias: str):
    assert load_model(alias).name == "llama3-8b"


@pytest.mark.parametrize("draft", ["eagle", "speculator"])
def test_a_draft_head_is_not_the_model_that_it_drafts_for(draft: str):
    with pytest.raises(UnknownNameError):
        load_model(f"RedHatAI/Llama-3.1-8B-Instruct-{draft}")


def test_aliases_are_unique_and_shadow_no_model():
    from tangram_sim.hwdb.models import _facts, _files

    aliases = [alias.lower() for path in _files().values() for alias in _facts(path).get("aliases", [])]
    assert len(aliases) == len(set(aliases))
    assert not set(aliases) & {name.lower() for name in model_names()}


def test_unknown_name_lists_the_nearest_and_the_other_ways():
    with pytest.raises(UnknownNameError, match="lama3-8b") as caught:
        load_model("lama3-8b")
    message = str(caught.value)
    assert message.index("llama3-8b,") < message.index("amp-gpt2")
    assert "config.json" in message
    assert "model.yaml" in message


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("deepseek-ai/DeepSeek-V3.2", "deepseek-v3.2"),
        ("deepseek-v3-671b", "deepseek-v3"),
        ("DeepSeek-V3-0324", "deepseek-v3"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama3-70b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama2-7b"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "qwen2.5-7b"),
        ("Qwen/Qwen3-8B-FP8", "qwen3-8b"),
        ("google/gemma-3-4b-it", "gemma3-4b"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "llama3-8b"),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "llama3-8b"),
        ("nemotron_3_super", "nemotron3-super-120b-a12b"),
        ("qwen3_30b_a3b", "qwen3-30b-a3b"),
    ],
)
def test_variants_of_a_checkpoint_name_the_model_they_were_made_from(given: str, name: str) -> None:
    assert load_model(given) == load_model(name)


@pytest.mark.parametrize("given", ["gpt2-1.5b", "Qwen/Qwen3-4000B", "qwen3", "instruct", "v0.1"])
def test_a_name_that_says_another_size_or_too_little_names_no_model(given: str) -> None:
    with pytest.raises(UnknownNameError):
        load_model(given)


@settings(max_examples=60, deadline=None)
@given(name=st.text(max_size=30))
def test_any_name_is_a_model_or_an_error_meant_for_people(name: str):
    with suppress(TangramError):
        assert load_model(name).layers > 0
