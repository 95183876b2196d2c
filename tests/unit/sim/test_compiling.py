"""Compiled loops: loading them loads no linear algebra, and functions that want it still get it."""

import subprocess
import sys

from tests.places import ROOT

_LOADS = """
import sys
from tangram_sim.graph_builder import GraphBuilder
from tangram_sim.sim.fast import makespan
builder = GraphBuilder()
builder.op("a", "r", 1.0)
print(makespan(builder.freeze()), "numba" in sys.modules, "scipy.linalg" in sys.modules)
"""
_WANTS = """
import numpy as np
from tangram_sim.compiling import njit
@njit
def product(a, b):
    return a @ b, np.correlate(a[0], b[0])
of = product(np.eye(2), 3 * np.eye(2))
print(of[0].sum(), of[1].sum())
"""
_COLLECTS = """
import gc
import numba
from numba.core import event
from tangram_sim.compiling import njit
class Looks(event.Listener):
    def on_start(self, event): seen.append(gc.isenabled())
    def on_end(self, event): pass
seen = []
event.register("numba:compile", Looks())
@njit
def inner(a):
    return a + 1
@njit
def outer(a):
    return inner(a) * 2
@njit
def broken(a):
    return a.nothing
print(outer(1), len(seen) >= 2, any(seen), gc.isenabled())
try:
    broken(1)
except numba.TypingError:
    print(gc.isenabled())
gc.disable()
print(inner(1.0), gc.isenabled())
"""


def _printed(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.split()


def test_a_compiled_loop_loads_no_linear_algebra():
    assert _printed(_LOADS) == ["1.0", "True", "False"]


def test_a_function_that_multiplies_matrices_compiles_still():
    assert _printed(_WANTS) == ["6.0", "3.0"]


def test_no_garbage_is_looked_for_while_something_compiles_and_it_is_again_afterwards():
    assert _printed(_COLLECTS) == ["4", "True", "False", "True", "True", "2.0", "False"]
