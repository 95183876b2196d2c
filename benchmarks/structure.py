"""`python -m benchmarks.structure`: the size and shape of the package, counted from its syntax trees.

The budget is `tests/contracts/budget.csv`, held by `tests/contracts/test_budget.py`: a figure may rise above
its limit only with a commit that changes the limit too and says which capability pays for it.
"""

import argparse
import ast
import csv
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUDGET = ROOT / "tests/contracts/budget.csv"
FACES = ("cli", "web", "reports")
SCRIPTS = (".js", ".css", ".html")
MANY_POSITIONAL = 7
MIRRORED_FIELDS = 4
# Limits and step sizes that several search strategies take from one place.
SHARED_CONSTANTS = ("tangram_sim/planners/budget.py",)
_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.comprehension, ast.match_case)
_DECLARING = ("Option", "Argument")  # of typer


@dataclass(frozen=True)
class Module:
    """One file of Python: its path below the repository, text and syntax tree."""

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree."""
        return list(ast.walk(self.tree))

    @property
    def lines(self) -> int:
        """Lines of the file, blank ones and comments counted."""
        return self.text.count("\n")

    @property
    def statements(self) -> int:
        """Statements of the tree, docstrings not counted."""
        return sum(isinstance(node, ast.stmt) for node in self.nodes) - len(self.docstrings)

    @property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Functions and methods, nested ones too."""
        return [node for node in self.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]

    @cached_property
    def docstrings(self) -> list[ast.Expr]:
        """The docstrings of the module, its classes and functions."""
        holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        firsts = [node.body[0] for node in self.nodes if isinstance(node, holders) and node.body]
        return [
            first
            for first in firsts
            if isinstance(first, ast.Expr)
            and isinstance(first.value, ast.Constant)
            and isinstance(first.value.value, str)
        ]


def modules(*folders: str) -> list[Module]:
    """The Python files below some folders of the repository, stubs too, sorted by path."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py*"))
    paths = sorted(path for path in found if path.suffix in (".py", ".pyi"))
    return [Module(path.relative_to(ROOT), path.read_text(encoding="utf-8")) for path in paths]


def _length(node: ast.stmt) -> int:
    """Lines from the first to the last of a statement."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def complexity(function: ast.AST) -> int:
    """Cyclomatic complexity: one, and one more for each branch and each further operand of `and` and `or`."""
    found = 1
    for node in ast.walk(function):
        if isinstance(node, _BRANCHES):
            found += 1
        elif isinstance(node, ast.BoolOp):
            found += len(node.values) - 1
    return found


def many_positional(files: Sequence[Module]) -> list[tuple[Module, ast.Call]]:
    """Calls with seven or more positional arguments, a splat counted as one."""
    return [
        (file, node)
        for file in files
        for node in file.nodes
        if isinstance(node, ast.Call) and len(node.args) >= MANY_POSITIONAL
    ]


def fields_by_class(files: Sequence[Module]) -> dict[str, frozenset[str]]:
    """`name: type` of the fields of every class that has four or more, by `path:class`."""
    found: dict[str, frozenset[str]] = {}
    for file in files:
        for node in file.nodes:
            if isinstance(node, ast.ClassDef):
                names = frozenset(
                    f"{part.target.id}: {ast.unparse(part.annotation)}"
                    for part in node.body
                    if isinstance(part, ast.AnnAssign)
                    and isinstance(part.target, ast.Name)
                    and not ast.unparse(part.annotation).startswith("ClassVar")
                )
                if len(names) >= MIRRORED_FIELDS:
                    found[f"{file.path}:{node.name}"] = names
    return found


def mirrored(files: Sequence[Module]) -> list[tuple[str, str, frozenset[str]]]:
    """(class, class, fields in common) of the pairs that have four or more fields in common."""
    pairs = itertools.combinations(fields_by_class(files).items(), 2)
    return [(a, b, x & y) for (a, x), (b, y) in pairs if len(x & y) >= MIRRORED_FIELDS]


def declared_by_hand(files: Sequence[Module]) -> int:
    """Options and arguments declared to the command line one by one, not derived from a question's fields."""
    return sum(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _DECLARING
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "typer"
        for file in files
        for node in file.nodes
    )


def shared_constants(files: Sequence[Module]) -> int:
    """Fields of the dataclasses, and upper-case names, in files of constants that strategies share."""
    found = 0
    for file in files:
        if file.path.as_posix() in SHARED_CONSTANTS:
            for node in file.nodes:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    found += 1
    return found


def _scripts() -> int:
    """Lines of scripts, styles and pages of HTML in the package."""
    files = (path for path in (ROOT / "tangram_sim").rglob("*") if path.suffix in SCRIPTS)
    return sum(path.read_text(encoding="utf-8").count("\n") for path in files)


def figures() -> Iterator[tuple[str, float]]:
    """(name, figure) of everything that is counted."""
    package = modules("tangram_sim")
    laboratory = modules("validate/tangram_validate")
    testbed = [file for file in laboratory if "testbed" in file.path.parts]
    faces = [file for file in package if file.path.parts[1] in FACES]
    functions = [function for file in package for function in file.functions]
    rooms: dict[str, int] = {}
    for file in package:
        rooms[file.path.parts[1]] = rooms.get(file.path.parts[1], 0) + file.lines
    total = sum(file.lines for file in package)
    yield "package_lines", total
    yield "package_statements", sum(file.statements for file in package)
    yield "script_lines", _scripts()
    yield "faces_lines", sum(file.lines for file in faces)
    yield "faces_statements", sum(file.statements for file in faces)
    yield "laboratory_lines", sum(file.lines for file in laboratory) - sum(file.lines for file in testbed)
    yield "testbed_lines", sum(file.lines for file in testbed)
    yield "test_lines", sum(file.lines for file in modules("tests"))
    yield "largest_room_percent", round(100 * max(rooms.values()) / total, 1)
    yield "functions", len(functions)
    yield "function_lines_mean", round(sum(map(_length, functions)) / len(functions), 2)
    yield "complexity_mean", round(sum(map(complexity, functions)) / len(functions), 2)
    docstring_lines = sum(_length(said) for file in package for said in file.docstrings)
    yield "docstring_lines_per_function", round(docstring_lines / len(functions), 2)
    yield "calls_with_7_positional_arguments", len(many_positional(package))
    yield "mirrored_classes", len(mirrored(package))
    yield "options_declared_by_hand", declared_by_hand(package)
    yield "constants_shared_by_strategies", shared_constants(package)


def budget() -> dict[str, tuple[float, str]]:
    """The limit of each figure that has one, and whether it is the most or the least allowed."""
    with BUDGET.open(encoding="utf-8") as file:
        return {row["figure"]: (float(row["limit"]), row["sense"]) for row in csv.DictReader(file)}


def main() -> None:
    """Print every figure beside its limit; with --list also what a figure is made of."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.structure", description=__doc__)
    parser.add_argument("--list", choices=("positional", "mirrored"), help="print each case of a figure")
    given = parser.parse_args()
    if given.list == "positional":
        for file, call in many_positional(modules("tangram_sim")):
            sys.stdout.write(f"{file.path}:{call.lineno}: {len(call.args)} in {ast.unparse(call.func)}\n")
    elif given.list == "mirrored":
        for item, other, names in mirrored(modules("tangram_sim")):
            sys.stdout.write(f"{item} {other}: {', '.join(sorted(names))}\n")
    else:
        limits = budget()
        for name, figure in figures():
            limit = f"{limits[name][1]} {limits[name][0]:g}" if name in limits else ""
            sys.stdout.write(f"{name:36} {figure:>10g}   {limit}\n")


if __name__ == "__main__":
    main()
