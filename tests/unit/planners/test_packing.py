"""The linear program of copies of patterns, against a solver of large programs and the laws of duality."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

from tangram_sim.planners.tangram.fleets.packing import PackingProgram


@st.composite
def programs(draw: st.DrawFn) -> tuple[NDArray[np.float64], NDArray[np.float64], list[NDArray[np.float64]]]:
    """Nodes that patterns use, nodes there are, and what a copy of each pattern is worth, a few times."""
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    entry = st.one_of(st.integers(0, 4).map(float), st.floats(0.125, 40.0))
    used = np.array(draw(st.lists(entry, min_size=rows * columns, max_size=rows * columns)))
    used = used.reshape(rows, columns)
    used[0, used.sum(axis=0) == 0] = 1.0
    room = np.array(draw(st.lists(st.integers(0, 400).map(float), min_size=rows, max_size=rows)))
    worth = st.lists(st.one_of(st.just(0.0), st.floats(0.01, 1e5)), min_size=columns, max_size=columns)
    return used, room, [np.array(draw(worth)) for _ in range(3)]


@given(programs())
def test_one_program_after_another_is_solved_as_a_large_solver_does(
    program: tuple[NDArray[np.float64], NDArray[np.float64], list[NDArray[np.float64]]],
) -> None:
    used, room, all_worths = program
    packing = PackingProgram(used, room)
    for worths in all_worths:
        found = packing.best(worths)
        known = linprog(-worths, A_ub=used, b_ub=room, method="highs")
        scale = 1e-6 * max(1.0, -known.fun)
        assert abs(found.worth + known.fun) <= scale
        assert (found.taken >= 0).all() and (used @ found.taken <= room + 1e-6 * (1 + room)).all()
        # Prices prove it: no column is worth more than what it uses, and all room is worth what was packed.
        assert (found.prices @ used >= worths - 1e-6 * (1 + worths.max())).all()
        assert abs(float(found.prices @ room) - found.worth) <= scale


def test_rows_without_room_end() -> None:
    """All corners are one: nothing is gained from one pivot to the next."""
    used = np.array([[0.5, 5.5, 2.5, 9.0], [0.5, 1.5, 0.5, 1.0], [1.0, 0.0, 0.0, 0.0]])
    found = PackingProgram(used, np.array([0.0, 0.0, 1.0])).best(np.array([10.0, 57.0, 9.0, 24.0]))
    assert found.worth == 0.0
