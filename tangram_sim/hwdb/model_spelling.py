"""Other spellings of model names: hub ids, instruct, base and quantised variants, added sizes.

A variant has the shape of its base model: only its weights or their format differ. Additions to a known
model's name are dropped word by word, and only words that mark a variant.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

# Words that change weights or their format.
_VARIANT = re.compile(
    r"instruct|chat|it|base|hf|pt|text|thinking|reasoning|preview|original|sft|dpo|rlhf|grpo|"
    r"(?:nv|mx)?fp\d+|bf16|fp16|int\d|w\d+a\d+|\d+bit|[48]bits|awq|gptq|gguf|bnb|mlx|kv|torchao|"
    r"quantized(?:\.w\d+a\d+)?|quant|dynamic|static|pertensor|block|scaled?|"
    r"v\d+(?:\.\d+)?|20\d{2}|2[2-9](?:0[1-9]|1[0-2])|(?:0[1-9]|1[0-2])\d\d|20\d{6}|hsdp|lora|qlora|128k|32k|8k|1m"
)
_OWNERS = ("meta", "nvidia", "hf", "unsloth", "redhatai", "neuralmagic")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([mbt])")
_UNITS = {"m": 1e6, "b": 1e9, "t": 1e12}
SIZED = 0.1  # a size in a name is rounded: how far it may be from the model's parameters


def words_of(name: str) -> list[str]:
    """The words of a name in lower case, without the owner in a hub id."""
    words = re.split(r"[-_\s()]+", name.strip().lower().rsplit("/", 1)[-1])
    words = [word for word in words if word]
    if "distill" in words:  # DeepSeek-R1-Distill-Llama-70B has the shape of what it was distilled into
        words = words[words.index("distill") + 1 :] or words
    while len(words) > 1 and words[0] in _OWNERS:
        words = words[1:]
    return words


def folded(words: Iterable[str]) -> str:
    """The words joined, so that names which differ only in separators are equal."""
    return "".join(words)


def spellings(name: str) -> Iterator[tuple[str, float]]:
    """(folded name, parameter count in dropped words or 0), from the whole name to ever shorter ones."""
    words, size = words_of(name), 0.0
    yield folded(words), size
    while len(words) > 1:
        last = words[-1]
        if stated := _SIZE.fullmatch(last):
            size = float(stated[1]) * _UNITS[stated[2]]
        elif not _VARIANT.fullmatch(last):
            return
        words = words[:-1]
        yield folded(words), size


def meant(name: str, known: Mapping[str, str], parameters: Callable[[str], float]) -> str | None:
    """The known model of which `name` is a spelling, or None.

    `known` gives models by folded name, `parameters` the parameter count of a model: a size that is dropped
    from a name must agree with it.
    """
    for spelling, size in spellings(name):
        model = known.get(spelling)
        if model is not None and (not size or abs(parameters(model) / size - 1) <= SIZED):
            return model
    return None
