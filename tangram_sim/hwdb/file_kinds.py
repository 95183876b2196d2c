"""Recognising the kind of a file by its keys, for errors where one kind is given in place of another."""

from collections.abc import Mapping
from typing import Any

from tangram_sim.errors import BadInputError

PLAN_SCHEMA = "1.0"  # of the plan files that this version writes; files of the same major number are read
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
    """The kind of file that a mapping looks like, as text; "" where it cannot be told.

    Price files have `nodes`, as clusters do, but as a mapping by name, not a list.
    """
    if not isinstance(data, Mapping):
        return ""
    if isinstance(data.get("nodes"), Mapping):
        return _PRICES
    return next((words for keys, words in _KINDS if all(key in data for key in keys)), "")


def is_plan(data: Any, where: object) -> bool:
    """Whether a mapping is a complete plan file, from which a model and a cluster can be read.

    Raises BadInputError for a plan of an unsupported schema.
    """
    if not isinstance(data, Mapping) or "schema_version" not in data:
        return False
    if not all(isinstance(data.get(key), Mapping) for key in ("model", "cluster")):
        return False
    plan_version(data, where)  # before its other keys: those of another schema may have other names
    return kind_of(data).startswith("a plan")


def plan_version(data: Mapping[str, Any], where: object) -> str:
    """The schema version of a plan file. Raises BadInputError for a major version not PLAN_SCHEMA's."""
    version, major = str(data["schema_version"]), PLAN_SCHEMA.partition(".")[0]
    if version.partition(".")[0] != major:
        raise BadInputError(
            f"{where}: plan schema version {version[:20]!r}, this tangram-sim reads {major}.x; "
            "plan again with this version"
        )
    return version


def misplaced(data: Any, wanted: str) -> str:
    """Text on what a file given as `wanted` ("model" or "cluster") is instead; "" where it may be one."""
    found = kind_of(data)
    if not found or found.startswith(f"a {wanted}"):
        return ""
    swapped = found.startswith(("a model", "a cluster"))
    return f"{found}, given for a {wanted}" + (f": {ORDER}" if swapped else "")
