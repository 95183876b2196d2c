"""What depends on a compiled kernel: other kernels, which hold its code, and the lines that call it."""

import ast
import re
from functools import cache
from pathlib import Path


def is_compiled(text: str) -> bool:
    """Whether a module holds kernels."""
    return "import njit" in text


def dependents(place: Path, path: Path) -> list[Path]:
    """Compiled modules whose kernels hold code of `path`, itself first, of a checkout."""
    found = [path]
    for item in found:  # grows
        found += [
            other for other in _compiled(place) if item in _imports(place, other) and other not in found
        ]
    return found


def calls(place: Path, path: Path, modules: list[Path]) -> list[tuple[Path, int]]:
    """(module, line) of the interpreted code among `modules` that names a kernel which depends on `path`."""
    kernels = dependents(place, path)
    names = {name for kernel in kernels for name in _functions(kernel)}
    wanted = re.compile(rf"\b({'|'.join(map(re.escape, sorted(names)))})\b") if names else None
    found = []
    for module in modules:
        if (
            module in kernels
            or wanted is None
            or not any(kernel in _imports(place, module) for kernel in kernels)
        ):
            continue
        lines = module.read_text(encoding="utf-8").split("\n")
        found += [(module, number) for number, line in enumerate(lines, 1) if wanted.search(line)]
    return found


@cache
def _compiled(place: Path) -> tuple[Path, ...]:
    every = sorted((place / "tangram_sim").rglob("*.py"))
    return tuple(path for path in every if is_compiled(path.read_text(encoding="utf-8")))


@cache
def _imports(place: Path, path: Path) -> frozenset[Path]:
    """Modules from which a module imports names, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inside = place / Path(*node.module.split("."))
            found |= {inside.with_suffix(".py")} | {inside / f"{name.name}.py" for name in node.names}
    return frozenset(found)


@cache
def _functions(path: Path) -> tuple[str, ...]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return tuple(node.name for node in tree.body if isinstance(node, ast.FunctionDef))
