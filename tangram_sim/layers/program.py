"""Ops of one atom in one direction, for K layouts at once: a short program that a chain repeats.

Structure (streams, dependencies) is the same for all layouts; ops that a layout does not have last 0 s.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tangram_sim.cost.kernels import Floats, Number

# Gradients that wait for nobody (ZeRO 0 to 2) have a stream of their own; ZeRO-3 reduces and gathers in turn.
# Those of the backward that ends a step have another, where a program stands for both backward passes.
COMPUTE, TENSOR, EXCHANGE, DATA, HOST, REDUCTION, CLOSING = range(7)
STREAMS = (
    "compute",
    "tensor-parallel link",
    "context/expert-parallel link",
    "data-parallel link",
    "host",
    "data-parallel link (gradients)",
    "data-parallel link (gradients of a step)",
)

# Predecessors outside the program: the output of the atom played before, and of the one before that.
PREVIOUS, BEFORE_PREVIOUS = -1, -2

GRADIENTS = "gradients"  # ops that synchronise an atom's gradients; nothing inside the pass waits for them

CLASSES = (
    "gemm",
    "attention",
    "memory",
    "tensor_parallel",
    "expert_parallel",
    "context_parallel",
    "data_parallel",
    "dispatch",
)


class LayerOp(NamedTuple):
    """One op of a program."""

    name: str
    stream: int
    kind: int  # index into CLASSES
    seconds: Floats  # K
    after: tuple[int, ...]


# What of a program decides the structure of a chain: (stream, kind, predecessors, is gradients) of every
# op, and the output.
Shape: TypeAlias = tuple[tuple[tuple[int, int, tuple[int, ...], bool], ...], int]


@dataclass(slots=True)
class Program:
    """An atom's ops in issue order; the end of op `output` makes the result available."""

    layouts: int
    ops: list[LayerOp] = field(default_factory=list)
    weight_gradient: Floats = field(init=False)  # seconds of compute that only weight gradients need
    gradients: Floats = field(init=False)  # seconds of gradient synchronisation
    closing: Floats | None = field(default=None, init=False)  # of it at the end of a step, if told beside
    output: int = -1
    _shape: Shape | None = field(default=None, init=False)  # of the finished program
    _table: Floats | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.weight_gradient = np.zeros(self.layouts)
        self.gradients = np.zeros(self.layouts)

    def add(self, name: str, stream: int, kind: str, seconds: Number, *after: int) -> int:
        """Append an op and return its index; it also waits for the op before it on its stream."""
        column = np.asarray(seconds, dtype=np.float64)
        if column.shape != (self.layouts,):
            column = np.broadcast_to(column, (self.layouts,))
        self.ops.append(LayerOp(name, stream, CLASSES.index(kind), column, after))
        self.output = len(self.ops) - 1
        return self.output

    def add_gradients(
        self,
        seconds: Floats,
        shares_link: NDArray[np.bool_],
        *after: int,
        closing: Floats | None = None,
        apart: bool = False,
    ) -> None:
        """Append the synchronisation of the atom's gradients, the last ops of a backward program.

        Where `shares_link` (ZeRO-3), it takes turns with the gathering of weights on the data-parallel link;
        elsewhere it runs in parallel, and no later atom waits for it. There it may take `closing` seconds at
        the end of a step: the program then represents both backward passes. With `apart` it runs on the
        stream of kernels, before or after these.
        """
        output, alone = self.output, COMPUTE if apart else REDUCTION
        self.add(GRADIENTS, DATA, "data_parallel", np.where(shares_link, seconds, 0.0), *after)
        self.add(GRADIENTS, alone, "data_parallel", np.where(shares_link, 0.0, seconds), *after)
        if closing is not None:
            self.add(GRADIENTS, CLOSING, "data_parallel", np.where(shares_link, 0.0, closing), *after)
        self.gradients, self.closing = seconds, closing
        self.output = output

    def ending(self, step: bool) -> "Program":
        """One of the two backward passes that this program represents: a step's last one, or earlier ones."""
        assert self.closing is not None
        part = Program(self.layouts, self.ops[:-1])
        if step:
            part.ops[-1] = self.ops[-1]._replace(stream=REDUCTION)
        part.weight_gradient, part.output = self.weight_gradient, self.output
        part.gradients = self.closing if step else self.gradients
        return part

    def add_weight_gradient(self, name: str, seconds: Floats, *after: int) -> int:
        """Append a compute op that only the gradient synchronisation waits for; returns its index."""
        output = self.output
        index = self.add(name, COMPUTE, "gemm", seconds, *after)
        self.weight_gradient = self.weight_gradient + seconds
        self.output = output
        return index

    @property
    def shape(self) -> Shape:
        """What the structure of chains depends on: ops without seconds. Cached: add no ops after reading."""
        if self._shape is None:
            ops = ((op.stream, op.kind, op.after, op.name == GRADIENTS) for op in self.ops)
            self._shape = tuple(ops), self.output
        return self._shape

    @property
    def table(self) -> Floats:
        """Seconds of all ops, (ops, K). Cached: add no ops after reading."""
        if self._table is None:
            self._keep(self.ops, np.array([op.seconds for op in self.ops]).reshape(-1, self.layouts))
        assert self._table is not None
        return self._table

    def _keep(self, ops: Sequence[LayerOp], table: Floats) -> None:
        """Set the ops to these with the rows of `table` as seconds, stored once."""
        self.ops = [LayerOp(*op[:3], row, op.after) for op, row in zip(ops, table, strict=True)]
        self._table = table

    def under(self, rows: slice | NDArray[np.int64]) -> "Program":
        """The same ops for the layouts selected by `rows`."""
        table = np.ascontiguousarray(self.table[:, rows])
        part = Program(table.shape[1])
        part._keep(self.ops, table)
        part.weight_gradient, part.gradients = self.weight_gradient[rows], self.gradients[rows]
        part.closing = None if self.closing is None else self.closing[rows]
        part.output, part._shape = self.output, self.shape
        return part
