"""Answers and parts of files are values: nobody who was handed one can change it for the others."""

from collections.abc import Iterator

import pytest
from pydantic import ValidationError

import tangram_sim.cli.main
import tangram_sim.web.app  # noqa: F401
from tangram_sim.file_parts import FilePart


def _all_of(base: type[FilePart]) -> Iterator[type[FilePart]]:
    for part in base.__subclasses__():
        yield part
        yield from _all_of(part)


def test_every_answer_and_part_of_a_file_is_frozen() -> None:
    """A class that loosens this would let one face change what another one prints."""
    loose = [part.__name__ for part in _all_of(FilePart) if not part.model_config.get("frozen")]
    assert not loose


class _Point(FilePart):
    x: int
    y: int = 0


def test_a_copy_with_other_fields_leaves_the_original_as_it_was() -> None:
    point = _Point(x=1)
    assert point.with_fields(y=2) == _Point(x=1, y=2)
    assert point == _Point(x=1)
    with pytest.raises(ValidationError, match="frozen"):
        point.x = 2  # type: ignore[misc]


def test_a_copy_refuses_a_field_that_does_not_exist() -> None:
    with pytest.raises(TypeError, match="_Point has no field z"):
        _Point(x=1).with_fields(z=3)
