"""A mixed-integer linear program, built row by row, solved by HiGHS through scipy, with its proven bound."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TIMED_OUT, _INFEASIBLE = 1, 2  # scipy's status


@contextmanager
def _silent() -> Iterator[None]:
    """Keep HiGHS's messages off standard output, where they would mix with JSON."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best values found (None: no solution), and a bound on the objective of all solutions.

    `infeasible`: it is proven that there is no solution; without values and without that, time ran out.
    """

    values: NDArray[np.float64] | None
    bound: float
    infeasible: bool = False


@dataclass(slots=True)
class LinearProgram:
    """A mixed-integer linear program under construction; every variable is nonnegative."""

    _upper: list[float] = field(default_factory=list)
    _integer: list[int] = field(default_factory=list)
    _entries: list[tuple[int, int, float]] = field(default_factory=list)  # row, variable, coefficient
    _low: list[float] = field(default_factory=list)
    _high: list[float] = field(default_factory=list)

    def variable(self, upper: float = inf, *, integer: bool = False) -> int:
        """Add a variable in [0, upper]; return its number."""
        self._upper.append(upper)
        self._integer.append(int(integer))
        return len(self._upper) - 1

    def row(self, terms: Sequence[tuple[int, float]], low: float = -inf, high: float = inf) -> None:
        """Require low <= sum of coefficient x variable <= high."""
        if low == -inf and high == inf:
            return
        self._entries.extend((len(self._low), variable, factor) for variable, factor in terms if factor)
        self._low.append(low)
        self._high.append(high)

    def minimise(
        self, terms: Sequence[tuple[int, float]], relative_gap: float = 1e-9, time_limit_s: float = inf
    ) -> Optimum:
        """Minimise the sum of coefficient x variable, to `relative_gap`."""
        from scipy.optimize import Bounds, LinearConstraint, milp  # half a second to import
        from scipy.sparse import csr_matrix

        objective = np.zeros(len(self._upper))
        for variable, factor in terms:
            objective[variable] += factor
        options: dict[str, Any] = {"mip_rel_gap": relative_gap}
        if time_limit_s < inf:
            options["time_limit"] = time_limit_s
        rows = [entry[0] for entry in self._entries]
        columns = [entry[1] for entry in self._entries]
        factors = [entry[2] for entry in self._entries]
        shape = (len(self._low), len(self._upper))
        matrix = csr_matrix((factors, (rows, columns)), shape=shape)
        with _silent():
            found = milp(
                objective,
                integrality=np.array(self._integer),
                bounds=Bounds(0.0, np.array(self._upper)),
                constraints=LinearConstraint(matrix, self._low, self._high) if self._low else (),
                options=options,
            )
        if found.x is None:
            return Optimum(None, inf, infeasible=found.status == _INFEASIBLE)
        bound = found.mip_dual_bound if any(self._integer) else found.fun
        return Optimum(np.asarray(found.x, dtype=np.float64), float(found.fun if bound is None else bound))

    def maximise(
        self, terms: Sequence[tuple[int, float]], relative_gap: float = 1e-9, time_limit_s: float = inf
    ) -> Optimum:
        """Maximise the sum of coefficient x variable, to `relative_gap`."""
        found = self.minimise([(v, -factor) for v, factor in terms], relative_gap, time_limit_s)
        return Optimum(found.values, -found.bound, found.infeasible)
