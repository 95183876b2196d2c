"""What any file may say: `true` is no number, in any key of any format."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any, Literal, get_args

import pytest
from pydantic import BaseModel, Field, ValidationError

import tangram_sim
from tangram_sim.file_parts import FilePart


class Inner(FilePart):
    """A mapping inside another one."""

    share: float = 0.0
    on: bool = False


class Outer(FilePart):
    """One field of each kind."""

    count: int = 0
    either: float | str = 0.0
    pair: tuple[int, float] = (0, 0.0)
    rows: list[list[float]] = Field([])
    by_name: dict[str, float] = Field({})
    inner: Inner | float = 0.0
    inners: dict[str, Inner] = Field({})
    flag: bool | None = None
    kind: Literal["a", True] = "a"
    anything: Any = None


@pytest.mark.parametrize(
    "given",
    [
        {"count": True},
        {"either": True},
        {"pair": (1, True)},
        {"rows": [[1.0], [2.0, False]]},
        {"by_name": {"a": True}},
        {"inner": True},
        {"inner": {"share": True}},
        {"inners": {"a": {"share": False}}},
    ],
)
def test_true_is_no_number(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="no number and no text"):
        Outer.model_validate(given)


def test_true_is_taken_where_it_is_meant() -> None:
    found = Outer.model_validate(
        {"flag": True, "kind": True, "anything": [True], "inner": {"on": True}, "inners": {"a": {"on": True}}}
    )
    assert (found.flag, found.kind, found.anything, found.inners["a"].on) == (True, True, [True], True)
    assert isinstance(found.inner, Inner) and found.inner.on


def _formats() -> Iterator[type[BaseModel]]:
    for module in pkgutil.walk_packages(tangram_sim.__path__, "tangram_sim."):
        if module.name.endswith(("schema", "documents", "_file", "checkpointing", "failures", "pricefile")):
            importlib.import_module(module.name)
    waiting = BaseModel.__subclasses__()
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__.startswith("tangram_sim."):
            yield kind


def _takes_truth(annotation: object) -> bool:
    inner = get_args(annotation)
    if inner:
        return any(map(_takes_truth, inner))
    return annotation in (bool, Any, object) or isinstance(annotation, bool)


def test_no_key_of_any_format_takes_true_for_a_number() -> None:
    asked, wrong = 0, []
    for kind in _formats():
        for name, field in kind.model_fields.items():
            if _takes_truth(field.annotation):
                continue
            asked += 1
            try:
                kind.model_validate({field.alias or name: True})
                wrong.append(f"{kind.__qualname__}.{name}")
            except ValidationError as error:
                if not any(item["loc"][:1] == (field.alias or name,) for item in error.errors()):
                    wrong.append(f"{kind.__qualname__}.{name}")
    assert asked > 300
    assert not wrong
