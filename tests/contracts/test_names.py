"""One name, one thing: a class name says which class it is wherever it is read."""

import ast
from collections import defaultdict

from tests.places import ROOT


def test_class_names_are_unique_across_the_package():
    modules: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tangram_sim").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                modules[node.name].append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in modules.items() if len(where) > 1} == {}
