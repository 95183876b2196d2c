"""What a file is, told by its keys: a word for whoever gave a file of one kind where another is wanted."""

from collections.abc import Mapping
from typing import Any

# Keys that only files of a kind have, all of them; the first kind that fits wins.
_KINDS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("pipelines", "step_s"), "a plan (`tangram simulate`, `explain` and `export` take plans)"),
    (("pipelines", "stages"), "a plan (`tangram simulate`, `explain` and `export` take plans)"),
    (("model_type",), "a model's config.json"),
    (("hidden", "layers"), "a model.yaml"),
    (("architectures",), "a model's config.json"),
    (("offers",), "a catalogue of offers"),
    (("economics",), "a price file (`--prices`)"),
    (("slow",), "a file of slow parts (`--slow`)"),
    (("nodes",), "a cluster"),
)


def kind_of(data: Any) -> str:
    """What a mapping read from a file looks like, in words; "" where nothing tells."""
    if not isinstance(data, Mapping):
        return ""
    return next((words for keys, words in _KINDS if all(key in data for key in keys)), "")


def is_no_cluster(data: Any) -> str:
    """What a file given for a cluster is instead; "" where it may be one.

    Price files have `nodes`, too: a mapping by name, not a list.
    """
    found = kind_of(data)
    if found == "a cluster":
        return "" if not isinstance(data["nodes"], Mapping) else "a price file (`--prices`)"
    return found


def is_no_model(data: Any) -> str:
    """What a file given for a model is instead; "" where it may be one."""
    found = kind_of(data)
    return "" if found.startswith("a model") else found
