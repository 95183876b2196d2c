"""The integer program over an operator graph: one strategy per operator, resharding paid on edges.

    min  sum_v s_v . c_v  +  sum_uv e_uv . R_uv
    subject to  sum s_v = 1,  sum e_uv = 1,  row sums of e_uv <= s_u,  column sums <= s_v,
                sum_v s_v . m_v <= M

with s binary and e continuous. Zheng et al., "Alpa", OSDI 2022 (arXiv:2201.12023), section 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tangram_sim.cost.kernels import Floats
from tangram_sim.errors import BadInputError


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator with its strategies (a role per axis of the mesh), and seconds and bytes of each."""

    name: str
    strategies: tuple[tuple[str, ...], ...]
    seconds: Floats
    held_bytes: Floats


@dataclass(frozen=True, eq=False)
class Resharding:
    """Cost [p, q] in seconds of moving a tensor from strategy p of one operator to strategy q of another."""

    before: int
    after: int
    seconds: Floats


@dataclass(frozen=True, eq=False)
class Graph:
    """Operators and the tensors between them."""

    nodes: tuple[Operator, ...]
    edges: tuple[Resharding, ...]

    def cost(self, choice: Sequence[int]) -> tuple[float, float]:
        """(seconds, bytes) of one strategy per node."""
        seconds = sum(float(node.seconds[pick]) for node, pick in zip(self.nodes, choice, strict=True))
        seconds += sum(float(edge.seconds[choice[edge.before], choice[edge.after]]) for edge in self.edges)
        held = sum(float(node.held_bytes[pick]) for node, pick in zip(self.nodes, choice, strict=True))
        return seconds, held


@dataclass(frozen=True, slots=True)
class SolvedSharding:
    """A solved graph: the strategy of every node by name, and what it costs."""

    choice: tuple[int, ...]
    roles: dict[str, tuple[str, ...]]
    seconds: float
    held_bytes: float


def solve(graph: Graph, limit_bytes: float = float("inf")) -> SolvedSharding | None:
    """The fastest sharding within `limit_bytes`; None when there is none.

    Raises BadInputError without scipy, whose HiGHS solves the program.
    """
    try:
        from scipy.optimize import LinearConstraint, milp
        from scipy.sparse import csc_array
    except ModuleNotFoundError:
        raise BadInputError(
            "the alpa parallelizer solves integer programs with scipy, which is not installed; "
            "type: pip install 'tangram-sim[alpa]'"
        ) from None

    counts = [len(node.strategies) for node in graph.nodes]
    first = np.concatenate([[0], np.cumsum(counts)])
    costs = [np.asarray(node.seconds, dtype=np.float64) for node in graph.nodes]
    rows, columns, values = list[int](), list[int](), list[float]()
    lower, upper = list[float](), list[float]()

    def row(entries: Sequence[tuple[int, float]], least: float, most: float) -> None:
        for column, value in entries:
            rows.append(len(lower))
            columns.append(column)
            values.append(value)
        lower.append(least)
        upper.append(most)

    for start, count in zip(first[:-1], counts, strict=True):
        row([(int(start) + k, 1.0) for k in range(count)], 1.0, 1.0)
    variable = int(first[-1])
    for edge in graph.edges:
        p, q = edge.seconds.shape
        costs.append(edge.seconds.ravel())
        cells = variable + np.arange(p * q).reshape(p, q)
        row([(int(cell), 1.0) for cell in cells.ravel()], 1.0, 1.0)
        for k in range(p):
            row([*((int(c), 1.0) for c in cells[k]), (int(first[edge.before]) + k, -1.0)], -np.inf, 0.0)
        for k in range(q):
            row([*((int(c), 1.0) for c in cells[:, k]), (int(first[edge.after]) + k, -1.0)], -np.inf, 0.0)
        variable += p * q
    if np.isfinite(limit_bytes):
        share = np.concatenate([node.held_bytes for node in graph.nodes]) / max(limit_bytes, 1.0)
        row([(k, float(value)) for k, value in enumerate(share)], -np.inf, 1.0)
    # Microseconds: the solver's tolerances are absolute.
    objective = np.concatenate(costs) * 1e6
    whole = np.zeros(variable)
    whole[: first[-1]] = 1
    matrix = csc_array((values, (rows, columns)), shape=(len(lower), variable))
    found = milp(
        objective,
        integrality=whole,
        bounds=(0, 1),
        constraints=LinearConstraint(matrix, lower, upper),
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
        return None
    choice = tuple(int(np.argmax(found.x[first[k] : first[k + 1]])) for k in range(len(counts)))
    seconds, held = graph.cost(choice)
    roles = {node.name: node.strategies[pick] for node, pick in zip(graph.nodes, choice, strict=True)}
    return SolvedSharding(choice, roles, seconds, held)
