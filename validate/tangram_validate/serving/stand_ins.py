"""Models that are not shipped, read as the nearest shipped one, grown or cut to the size named."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import takewhile
from math import log

from tangram_sim.errors import TangramError
from tangram_sim.hwdb import load_model, model_names
from tangram_sim.models import Model

# Words of a checkpoint's name that do not change its blocks: how it was tuned, what it reads beside text,
# when it was published, the accuracy target of an MLPerf entry.
_WORDS = re.compile(
    r"[-_ ](instruct|thinking|chat|base|it|pt|hf|vl|omni|vision|coder|reasoning|edge|preview|\d{4}|99(\.9)?)"
    r"(?=[-_ ]|$)",
    re.IGNORECASE,
)
_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)(?:x(\d+(?:\.\d+)?))?b(?![a-z])", re.IGNORECASE)
_ACTIVE = re.compile(r"(?<![\w.])a(\d+(?:\.\d+)?)b(?![a-z])", re.IGNORECASE)
# Endings of checkpoints' names that say their precision.
ENDINGS = (
    *(("quantized.w8a8", "int8"), ("quantized.w4a16", "int4"), ("fp8-dynamic", "fp8"), ("-nvfp4", "nvfp4")),
    *(("-fp8", "fp8"), ("-awq", "int4"), ("-gptq", "int4")),
)
# Publishers of quantised copies, and what their copies are called at home.
_FAMILIES = ("meta-llama/", "mistralai/", "Qwen/", "ibm-granite/", "deepseek-ai/", "openai/")
_LEAST_ALIKE = 5  # letters that the names of two of one family have in common
_BILLION = 1e9


def plain_names(name: str) -> Iterator[str]:
    """Spellings of `name` without the words that leave the blocks as they are, most of the name first."""
    tail = name.rsplit("/", maxsplit=1)[-1]
    before = ""
    while tail != before:
        yield tail
        before, tail = tail, _WORDS.sub("", tail, count=1)


def stand_in(name: str, total_b: float = 0.0, active_b: float = 0.0) -> Model:
    """The shipped model nearest to one that is not shipped, with more or fewer blocks as it is larger.

    Sizes are in billions of parameters, 0.0 where only the name may tell. Raises TangramError where the name
    tells neither a size nor a family.
    """
    plain = list(plain_names(name))[-1]
    told, active_told = _SIZE.search(plain), _ACTIVE.search(plain)
    total = total_b or (float(told[1]) * float(told[2] or 1.0) if told else 0.0)
    active = active_b or (float(active_told[1]) if active_told else total)
    alike = {own: _alike(plain, own) for own in model_names()}
    if not total:
        nearest = max(alike, key=lambda own: alike[own])
        if alike[nearest] < _LEAST_ALIKE:
            return load_model(name)  # raises, with the nearest names
        return replace(load_model(nearest), name=plain)

    def distance(own: str) -> float:
        whole, used = _sizes(own)
        return abs(log(total * _BILLION / whole)) + abs(log(active * _BILLION / used)) - 0.2 * alike[own]

    model = load_model(min((own for own in alike if not own.startswith(("bert", "amp-"))), key=distance))
    ends = model.parameters - sum(block.parameters(model.hidden) for block in model.blocks)
    grown = max(total * _BILLION - ends, 0.1 * total * _BILLION) / max(model.parameters - ends, 1.0)
    count = max(1, round(model.layers * grown))
    blocks = tuple(model.blocks[place * model.layers // count] for place in range(count))
    return replace(model, name=plain, blocks=blocks)


@cache
def _sizes(name: str) -> tuple[float, float]:
    model = load_model(name)
    return float(model.parameters), float(model.active_parameters)


def _alike(one: str, other: str) -> int:
    """Letters and digits that two names begin with alike, separators apart."""
    first, second = (re.sub(r"[^a-z0-9.]", "", text.lower()) for text in (one, other))
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def known_variant(name: str) -> Model | None:
    """The shipped model that `name` is a tuned copy of, None where there is none."""
    for spelling in plain_names(name):
        folded = re.sub(r"[-_ ]", "", spelling.lower())
        for own in model_names():
            if re.sub(r"[-_ ]", "", own.lower()) == folded:
                return load_model(own)
        try:
            return load_model(spelling)
        except TangramError:
            continue
    return None


def shipped_model(name: str) -> Model:
    """A shipped model by any of its names, or by that of a quantised or tuned copy. Raises TangramError."""
    base = name
    for end, _ in ENDINGS:
        if base.lower().endswith(end):
            base = base[: -len(end)].rstrip("-")
    tail = base.split("/")[-1]
    if tail.lower().startswith("gptj"):  # MLPerf's name
        tail = "gpt-j-6b"
    tries: Iterable[str] = (name, base, tail, *(family + tail for family in _FAMILIES))
    tries = (*tries, *(item.replace("Meta-", "") for item in tries))
    for item in tries:
        try:
            return load_model(item)
        except TangramError:
            continue
    return known_variant(base) or load_model(name)
