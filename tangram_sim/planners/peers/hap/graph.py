"""The model as a graph of single-device operations, forward; every tensor is the output of one operation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tangram_sim.layers.atoms import atom_kinds
from tangram_sim.models import Block, Experts, Model
from tangram_sim.training.job import Job

FORWARD_AND_BACKWARD = 3.0  # of the forward FLOP: the backward has twice as many


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation; sizes are those of its whole tensors for one microbatch.

    `inputs` are the positions of the operations whose outputs it reads; empty if it reads the batch.
    """

    kind: str  # embedding, linear, attention, norm, elementwise, add or loss
    inputs: tuple[int, ...]
    flop: float  # forward
    output_bytes: float
    weight_bytes: float = 0.0
    gradient_bytes: float = 0.0
    speed: int = 0  # class of operations with speeds of their own
    block: int = 0  # operations that a plan lays out alike


class _GraphBuilder:
    """Builder that appends operations to a graph in order."""

    def __init__(self, tokens: float, job: Job) -> None:
        self.ops: list[Operation] = []
        self.tokens, self.bytes = tokens, job.precision.activation_bytes
        self.weight, self.gradient = job.precision.weight_bytes, job.recipe.gradient_bytes * job.trainable

    def add(
        self,
        kind: str,
        inputs: tuple[int, ...],
        width: float,
        place: tuple[int, int],
        parameters: float = 0.0,
        per_token: float = 0.0,
    ) -> int:
        """Append an operation: `per_token` forward FLOP, `width` output elements; returns its position."""
        self.ops.append(
            Operation(
                kind,
                inputs,
                flop=per_token * self.tokens,
                output_bytes=width * self.tokens * self.bytes,
                weight_bytes=parameters * self.weight,
                gradient_bytes=parameters * self.gradient,
                speed=place[0],
                block=place[1],
            )
        )
        return len(self.ops) - 1


def graph_of(model: Model, job: Job, sequences: float) -> tuple[Operation, ...]:
    """Operations of embedding, blocks, head and loss for a microbatch of this many sequences.

    The speed class of an operation is the kind of its atom, so that speeds can be read from a profile of
    layers; embedding and head belong to the layout of the first and the last block.
    """
    kinds, hidden = atom_kinds(model), model.hidden
    made = _GraphBuilder(sequences * job.seq, job)
    x = made.add("embedding", (), hidden, (kinds[0], 0), model.embedding_parameters, hidden)
    for number, block in enumerate(model.blocks):
        x = _block(made, block, x, job.seq, hidden, (kinds[number + 1], number))
    end = (kinds[-1], model.layers - 1)
    matrix = model.vocabulary_parameters
    normed = made.add("norm", (x,), hidden, end, per_token=8.0 * hidden)
    logits = made.add("linear", (normed,), model.vocab, end, matrix, 2.0 * matrix)
    made.add("loss", (logits,), 0.0, end, per_token=5.0 * model.vocab)
    return tuple(made.ops)


def _block(made: _GraphBuilder, block: Block, x: int, seq: int, hidden: int, place: tuple[int, int]) -> int:
    attention, ffn = block.attention, block.feed_forward
    values = attention.heads * attention.value_dim
    out = float(values * hidden)
    into = attention.parameters(hidden) - out
    width = attention.heads * attention.head_dim + attention.kv_heads * (
        attention.head_dim + attention.value_dim
    )
    context = min(attention.window or seq, seq) * (0.5 if attention.causal and not attention.window else 1.0)
    scores = 2.0 * attention.heads * (attention.head_dim + attention.value_dim) * context
    normed = made.add("norm", (x,), hidden, place, per_token=8.0 * hidden)
    packed = made.add("linear", (normed,), width, place, into, 2.0 * into)
    mixed = made.add("attention", (packed,), values, place, per_token=scores)
    projected = made.add("linear", (mixed,), hidden, place, out, 2.0 * out)
    between = made.add("add", (x, projected), hidden, place, per_token=hidden)
    second = made.add("norm", (x if block.parallel else between,), hidden, place, per_token=8.0 * hidden)
    every, used = float(ffn.parameters(hidden)), float(ffn.parameters(hidden))
    inner = ffn.width
    if isinstance(ffn, Experts):
        used, inner = float(ffn.active_parameters(hidden)), ffn.width * ffn.active + ffn.shared_width
    first = 2.0 / 3.0 if ffn.gated else 0.5
    up = made.add("linear", (second,), inner * (1 + ffn.gated), place, first * every, 2.0 * first * used)
    bent = made.add("elementwise", (up,), inner, place, per_token=8.0 * inner)
    down = made.add("linear", (bent,), hidden, place, (1.0 - first) * every, 2.0 * (1.0 - first) * used)
    return made.add("add", (between, down), hidden, place, per_token=hidden)


def last_uses(ops: Sequence[Operation]) -> list[int]:
    """Position of the last operation that reads each operation's output; its own if none does."""
    last = list(range(len(ops)))
    for place, op in enumerate(ops):
        for source in op.inputs:
            last[source] = max(last[source], place)
    return last


def by_class(ops: Sequence[Operation]) -> Iterator[tuple[int, float]]:
    """Yields (speed class, total forward and backward FLOP of its operations), sorted by class."""
    totals: dict[int, float] = {}
    for op in ops:
        totals[op.speed] = totals.get(op.speed, 0.0) + FORWARD_AND_BACKWARD * op.flop
    yield from sorted(totals.items())
