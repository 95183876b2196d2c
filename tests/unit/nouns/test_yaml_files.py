"""What is said of YAML files that hold something else than keys with values."""

from pathlib import Path

import pytest

from tangram_sim.datafiles import read_yaml_mapping
from tangram_sim.errors import BadInputError


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "nothing is in it; keys with values are wanted: name, nodes"),
        ("# only a comment\n", "nothing is in it; keys"),
        ("- a\n- b\n", "['a', 'b'] is in it; keys"),
        ("a: 1\nb: [2\n", ", line 3: not YAML: expected ',' or ']', but got '<stream end>'"),
        ("a: 1\n\tb: 2\n", ", line 2: not YAML: found character '\\t' that cannot start any token"),
        ("a: 1\nb: 2\na: 3\n", ", line 3: key 'a' is given twice"),
        ("a: &x [*x]\n", "aliases make it longer than"),
        ("[" * 5000, "not YAML: nested too deeply"),
    ],
)
def test_the_place_and_the_fault_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "given.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInputError) as raised:
        read_yaml_mapping(path, "name, nodes")
    assert str(raised.value).startswith(str(path))
    assert words in str(raised.value)
