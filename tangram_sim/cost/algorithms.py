"""Collective algorithms by name: functions of (tree, bytes, op) that return a plan with its seconds.

Built in are GenTree and the fixed plans; installed packages may add theirs under the entry-point group
`tangram_sim.collectives` (private until two external packages need it).
"""

from collections.abc import Callable
from typing import TypeAlias, cast

from tangram_sim import registry
from tangram_sim.cost.genmodel import FIXED
from tangram_sim.cost.gentree import BY_LEVEL, TreePlan, fixed_plan, gentree
from tangram_sim.cost.switchtree import Tree
from tangram_sim.errors import unknown_name

Algorithm: TypeAlias = Callable[[Tree, float, str], TreePlan]

_NAMES = ("gentree", *FIXED, *(f"hierarchical-{name}" for name in BY_LEVEL))


def algorithm_names() -> tuple[str, ...]:
    """Names of the built-in and installed algorithms; the installed ones are not imported."""
    return (*_NAMES, *(name for name in registry.names(registry.COLLECTIVES) if name not in _NAMES))


def algorithm(name: str) -> Algorithm:
    """The algorithm of that name. Raises UnknownNameError with the nearest names."""
    if name == "gentree":
        return gentree
    if name in _NAMES:
        return lambda tree, size, op: fixed_plan(name, tree, size, op)
    if name in registry.names(registry.COLLECTIVES):
        return cast(Algorithm, registry.load(registry.COLLECTIVES, name))
    raise unknown_name("collective algorithm", name, algorithm_names())
