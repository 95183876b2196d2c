"""Models by the names that sources use, and stand-ins of the same size for those that nobody knows."""

from math import log

from tangram_sim.errors import TangramError
from tangram_sim.hwdb import load_model
from tangram_sim.hwdb.models import model_names
from tangram_sim.models import Model
from tangram_validate.published.cells import CellError, Cells

_SUFFIXES = ("-instruct", "-chat", "-base", "-it", "-hf", "-sft", "-thinking", "-bf16")
_NAMES = {
    "qwen2.5-math-7b": "qwen2.5-7b",
    "r1-distill-qwen-7b": "qwen2.5-7b",
    "r1-distill-qwen-1.5b": "qwen2.5-1.5b",
}
_SIMILAR = 1.6  # a stand-in has at most this many times the parameters, or one part in so many


def model_of(cells: Cells) -> tuple[Model, float]:
    """The model of a row, and how many times larger the run's is than it where another one stands in.

    Raises CellError where no shipped model is near.
    """
    stated = cells.text("model")
    total, active = cells.number("params_b"), cells.number("active_b")
    for name in _spellings(stated):
        try:
            return load_model(_NAMES.get(name, name)), 1.0
        except TangramError:
            continue
    if not total:
        raise CellError(f"model {stated or 'not stated'}: unknown, and params_b does not say its size")
    active = active or total
    near = []
    for name in model_names():
        model = load_model(name)
        apart = abs(log(model.parameters / total / 1e9)) + abs(log(model.active_parameters / active / 1e9))
        near.append((apart, name))
    apart, name = min(near)
    if apart > log(_SIMILAR):
        raise CellError(f"model {stated}: unknown, and no shipped model has about {total:g}B parameters")
    model = load_model(name)
    cells.assume("model", name, f"{stated} is not known; nearest in parameters")
    return model, active * 1e9 / model.active_parameters


def _spellings(stated: str) -> list[str]:
    """Ways in which a shipped model may have the name of a row: without its owner, suffixes and remarks."""
    plain = stated.split("(", maxsplit=1)[0].strip()
    found = [plain, plain.lower()]
    tail = plain.split("/")[-1].lower()
    found.append(tail)
    while True:
        shorter = next((tail[: -len(end)] for end in _SUFFIXES if tail.endswith(end)), tail)
        if shorter == tail:
            break
        tail = shorter
        found.append(tail)
    for owner in ("qwen", "meta-llama", "deepseek-ai", "google", "mistralai", "facebook"):
        found += [f"{owner}/{plain}", f"{owner}/{tail}"]
    squeezed = (
        tail.replace("llama-3.1-", "llama3-").replace("llama-3-", "llama3-").replace("llama-2-", "llama2-")
    )
    squeezed = (
        squeezed.replace("llama-2 ", "llama2-").replace("gemma-2-", "gemma2-").replace("gemma-3-", "gemma3-")
    )
    return [item for item in [*found, squeezed, squeezed.replace(" ", "-")] if item]
