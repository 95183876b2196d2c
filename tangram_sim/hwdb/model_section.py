"""The model section of a plan file: writing the complete definition of a model, and reading it."""

from itertools import groupby
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.file_parts import first_problem
from tangram_sim.hwdb.families.config import LARGEST_SIZE, MOST_LAYERS
from tangram_sim.model_details import Details
from tangram_sim.models import Block, Model

_BLOCK: TypeAdapter[Block] = TypeAdapter(Block)
_MODEL: TypeAdapter[Model] = TypeAdapter(Model)
_DETAILS: TypeAdapter[Details] = TypeAdapter(Details)
_MAY_BE_ZERO = {
    *("query_rank", "kv_rank", "rope_dim", "window", "norm_parameters", "shared_width", "norms"),
    *("index_heads", "index_dim", "sent_width"),
}
# Left out of files where a model has none, so that files of other models stay as they were.
_SELDOM = ("output_gate", "linear", "index_heads", "index_dim")
_MUST_BE_POSITIVE = {"hidden", "vocab"}


def model_to_dict(model: Model) -> dict[str, Any]:
    """The complete definition of a model, with equal neighbouring blocks written once with their count."""
    fields = {name: getattr(model, name) for name in Model.__dataclass_fields__ if name != "blocks"}
    fields["details"] = model.details.stated()
    for name in ("rotary_base", "norm_epsilon", "details", "defaults"):
        if not fields[name]:
            del fields[name]
    runs = [(block, len(list(same))) for block, same in groupby(model.blocks)]
    return {
        **fields,
        "blocks": [{"count": count, "block": _block_to_dict(block)} for block, count in runs],
    }


def _block_to_dict(block: Block) -> dict[str, Any]:
    dumped: dict[str, Any] = _BLOCK.dump_python(block)
    for key in _SELDOM:
        if not dumped["attention"][key]:
            del dumped["attention"][key]
    if not dumped["feed_forward"].get("sent_width", 1):
        del dumped["feed_forward"]["sent_width"]
    return dumped


def model_from_dict(data: dict[str, Any], where: str) -> Model:
    """The inverse of `model_to_dict`. Raises BadInputError naming `where` and the key."""
    try:
        runs = [(int(run["count"]), run["block"]) for run in data["blocks"]]
        if not runs or not all(1 <= count <= MOST_LAYERS for count, _ in runs):
            raise BadInputError(f"{where}: model.blocks: counts must be 1 to {MOST_LAYERS}")
        blocks = tuple(
            block for count, given in runs for block in [_block(given, f"{where}: model.blocks")] * count
        )
        model = _MODEL.validate_python({**data, "blocks": blocks})
    except ValidationError as error:
        raise BadInputError(f"{where}: model: {first_problem(error)}") from None
    except KeyError as error:
        raise BadInputError(f"{where}: model: key {error} is missing") from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:  # overflow: a count of infinity
        raise BadInputError(f"{where}: model: malformed: {error}") from None
    known = {name: getattr(model, name) for name in Model.__dataclass_fields__}
    known["details"] = _DETAILS.dump_python(model.details, mode="json")
    _require_agreement(
        {key: value for key, value in data.items() if key != "blocks"}, known, f"{where}: model"
    )
    _require_sizes(known, _MUST_BE_POSITIVE, f"{where}: model")
    if not 0 <= model.norm_epsilon < 1:
        raise BadInputError(
            f"{where}: model.norm_epsilon: {model.norm_epsilon} given; 0 to below 1 is wanted"
        )
    return model


def _block(given: dict[str, Any], where: str) -> Block:
    """One block; raises BadInputError for unknown keys and unreasonable sizes."""
    block = _BLOCK.validate_python(given)
    known = _BLOCK.dump_python(block)
    _require_agreement(given, known, where)
    attention, part = known["attention"], known["feed_forward"]
    # A mixer without a feed-forward behind it has a plain one of width 0 (Nemotron-H).
    none = set() if "experts" in part or part["gated"] else {"width"}
    for section in (known, attention, part):
        _require_sizes(section, set(section) - _MAY_BE_ZERO - none, where)
    if attention["heads"] % attention["kv_heads"] or attention["rope_dim"] > attention["head_dim"]:
        raise BadInputError(f"{where}: heads must be a multiple of kv_heads, and rope_dim at most head_dim")
    if part.get("active", 0) > part.get("experts", 0):
        raise BadInputError(f"{where}: {part['active']} active experts of {part['experts']}")
    return block


def _require_agreement(given: Any, known: Any, where: str) -> None:
    """Raise BadInputError for unknown keys, and for values that were converted ("8" for 8)."""
    if not isinstance(given, dict) or not isinstance(known, dict):
        # JSON gives tuples back as lists.
        if (list(given) if isinstance(given, tuple) else given) != (
            list(known) if isinstance(known, tuple) else known
        ):
            raise BadInputError(f"{where}: {given!r} is not understood")
        return
    for key, value in given.items():
        if key not in known:
            raise BadInputError(f"{where}: {unknown_name('key', str(key), known)}")
        _require_agreement(value, known[key], f"{where}.{key}")


def _require_sizes(section: dict[str, Any], positive: set[str], where: str) -> None:
    for key, value in section.items():
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        least = 1 if key in positive else 0
        if not least <= value <= LARGEST_SIZE:
            raise BadInputError(f"{where}.{key}: {value} given; {least} to {LARGEST_SIZE} is wanted")
