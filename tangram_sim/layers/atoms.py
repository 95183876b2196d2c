"""The smallest parts a model is cut into: embedding, blocks, head; and slices, contiguous runs of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, TypeAlias

from tangram_sim.models import Block, Model


@dataclass(frozen=True, slots=True)
class Embedding:
    """The input side: vocabulary and position tables.

    `borrowed` parameters are a tied matrix that the head of the same stage stores for both.
    """

    parameters: int
    borrowed: int = 0


@dataclass(frozen=True, slots=True)
class Head:
    """The output side: final norm, vocabulary projection, loss.

    Holds a copy of a tied matrix, unless `borrowed` parameters are stored by the same stage's embedding.
    """

    parameters: int
    borrowed: int = 0


Atom: TypeAlias = Embedding | Block | Head
End: TypeAlias = Literal["embedding", "head"]  # of a model


@lru_cache(maxsize=64)
def atoms_of(model: Model) -> tuple[Atom, ...]:
    """All atoms of a model: atom 0 is the embedding, atoms 1..layers the blocks, the last one the head.

    A tied matrix appears twice: where first and last stage differ both hold a copy and all-reduce its
    gradient. For one stage with both ends see `one_copy_of`.
    """
    head = model.vocab * (model.embedding_dim or model.hidden) + model.head_only_parameters
    return (Embedding(model.embedding_parameters), *model.blocks, Head(head))


@lru_cache(maxsize=64)
def one_copy_of(model: Model, borrower: End) -> tuple[Atom, ...]:
    """The atoms of a model with tied ends on one stage, where `borrower` reads the other end's matrix.

    The stage stores, reduces and updates that matrix once.
    """
    embedding, *blocks, head = atoms_of(model)
    matrix = model.vocabulary_parameters
    if borrower == "head":
        return (embedding, *blocks, Head(model.head_parameters_total, matrix))
    return (Embedding(model.embedding_parameters, matrix), *blocks, head)


def borrowers(model: Model, runs: Sequence[tuple[int, int]]) -> list[End | None]:
    """For each run of atoms [start, stop) of a stage, the end of the model in it that borrows a tied matrix.

    The head borrows if the stage has both ends under one layout: the embedding's gradient is complete last.
    """
    both = model.tied and runs[0][0] == 0 and runs[-1][1] == model.layers + 2
    found: list[End | None] = [None] * len(runs)
    found[-1] = "head" if both else None
    return found


@lru_cache(maxsize=64)
def atom_kinds(model: Model) -> tuple[int, ...]:
    """The kind of every atom, numbered from 0 in order of appearance; equal atoms have equal kinds."""
    atoms = atoms_of(model)
    numbers = {atom: number for number, atom in enumerate(dict.fromkeys(atoms))}
    return tuple(numbers[atom] for atom in atoms)


@dataclass(frozen=True)
class Slice:
    """Atoms [start, stop) of a model, as a stage holds them."""

    model: Model
    start: int
    stop: int

    @cached_property
    def atoms(self) -> tuple[Atom, ...]:
        """The atoms, first to last."""
        return atoms_of(self.model)[self.start : self.stop]

    @property
    def signature(self) -> tuple[int, ...]:
        """Kinds of the atoms, numbered within the model; equal signatures cost the same."""
        return atom_kinds(self.model)[self.start : self.stop]

    @property
    def layers(self) -> tuple[int, int]:
        """Transformer blocks [start, stop), embedding and head apart."""
        last = self.model.layers
        return min(max(self.start - 1, 0), last), min(max(self.stop - 1, 0), last)

    @property
    def embedding(self) -> bool:
        """Whether the slice holds the embedding."""
        return self.start == 0 < self.stop

    @property
    def head(self) -> bool:
        """Whether the slice holds the head."""
        return self.stop == self.model.layers + 2 and self.start < self.stop

    @property
    def lone_end(self) -> bool:
        """Whether the slice holds only one end of a model whose ends are tied."""
        return self.model.tied and self.embedding != self.head

    def __len__(self) -> int:
        return self.stop - self.start

    def concatenate(self, after: "Slice") -> "Slice":
        """The slice followed by its neighbour (`concatenate` of the paper's API).

        Raises ValueError when the two do not touch.
        """
        if after.model != self.model or after.start != self.stop:
            raise ValueError(
                f"slices [{self.start}, {self.stop}) and [{after.start}, {after.stop}) do not touch"
            )
        return Slice(self.model, self.start, after.stop)


def whole(model: Model) -> Slice:
    """The whole model as one slice."""
    return Slice(model, 0, model.layers + 2)
