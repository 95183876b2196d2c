"""What a file is, told by its keys: a word for whoever gave a file of one kind where another is wanted."""

from collections.abc import Mapping
from typing import Any

ORDER = "MODEL comes first, then CLUSTER"
_PRICES = "a price file (`prices=`)"
# Keys that only files of a kind have, all of them; the first kind that fits wins.
_KINDS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("pipelines", "step_s"), "a plan (`tangram simulate`, `explain` and `export` take plans)"),
    (("pipelines", "stages"), "a plan (`tangram simulate`, `explain` and `export` take plans)"),
    (("model_type",), "a model's config.json"),
    (("hidden", "layers"), "a model.yaml"),
    (("architectures",), "a model's config.json"),
    (("offers",), "a catalogue of offers"),
    (("economics",), _PRICES),
    (("slow",), "a file of slow parts (`slow=`)"),
    (("nodes",), "a cluster"),
)


def kind_of(data: Any) -> str:
    """What a mapping read from a file looks like, in words; "" where nothing tells.

    Price files have `nodes`, as clusters do: a mapping by name, not a list.
    """
    if not isinstance(data, Mapping):
        return ""
    if isinstance(data.get("nodes"), Mapping):
        return _PRICES
    return next((words for keys, words in _KINDS if all(key in data for key in keys)), "")


def is_plan(data: Any) -> bool:
    """Whether a mapping is a whole plan file: it stands for the model and the cluster it was made for."""
    return kind_of(data).startswith("a plan") and {"schema_version", "model", "cluster"} <= data.keys()


def misplaced(data: Any, wanted: str) -> str:
    """What a file given for a `wanted`, "model" or "cluster", is instead; "" where it may be one."""
    found = kind_of(data)
    if not found or found.startswith(f"a {wanted}"):
        return ""
    swapped = found.startswith(("a model", "a cluster"))
    return f"{found}, given for a {wanted}" + (f": {ORDER}" if swapped else "")
