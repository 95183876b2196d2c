"""Other spellings of a model's name: ids on the hub, instruct, base and quantised variants, sizes beside it.

A variant has the shape of the model that it was made from: its weights differ, or the format they are kept
in. What a name adds to that of a known model is dropped word by word, and only words that say so.
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
    """The words of a name in lower case, without the owner of an id on the hub."""
    words = re.split(r"[-_\s()]+", name.strip().lower().rsplit("/", 1)[-1])
    words = [word for word in words if word]
    if "distill" in words:  # DeepSeek-R1-Distill-Llama-70B has the shape of what it was distilled into
        words = words[words.index("distill") + 1 :] or words
    while len(words) > 1 and words[0] in _OWNERS:
        words = words[1:]
    return words


def folded(words: Iterable[str]) -> str:
    """One spelling for all ways to join and separate the words of a name."""
    return "".join(words)


def spellings(name: str) -> Iterator[tuple[str, float]]:
    """(folded name, parameters it must have or 0), from the whole name on to ever shorter ones."""
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
    """The model that `name` is a spelling of, or None.

    `known` gives models by folded name, `parameters` how many one has: a size that is dropped from a name
    must agree with it.
    """
    for spelling, size in spellings(name):
        model = known.get(spelling)
        if model is not None and (not size or abs(parameters(model) / size - 1) <= SIZED):
            return model
    return None
