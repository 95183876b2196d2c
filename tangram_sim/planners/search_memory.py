"""Cache between searches: partial plans, and prices of stages."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from tangram_sim.fields import described, stated
from tangram_sim.parallelizers.api import Parallelizer
from tangram_sim.parallelizers.grid import Grid
from tangram_sim.registry import parallelizer as parallelizer_named
from tangram_sim.training.stage.prices import PriceMemory

# Parts of islands whose layouts stay priced for the next search: one to four nodes of six kinds, eight sizes
# of microbatch and two number formats are some 400, at a third of a MB each.
_MENUS = 600


@described
@dataclass
class SearchMemory:
    """Partial plans and prices kept from one search to the next, in one process.

    A fleet that lost, gained or slowed a node has most parts of its islands in common with the fleet before:
    slices on these are not asked about again. Both hang on the model, the job, the hardware data and the part
    alone, so that a plan is the same whatever was searched before it.

        memory = SearchMemory()
        with memory.in_use():
            before = plan("llama3-8b", "A100-80GBx8:3+H100x8:2")
            after = plan("llama3-8b", "A100-80GBx8:2+H100x8:2")

    One thread at a time: nothing in it is locked.
    """

    parallelizers: dict[str, Parallelizer] = field(
        default_factory=dict, metadata=stated("Those asked so far, by registered name.")
    )
    _prices: PriceMemory = field(default_factory=PriceMemory)

    def parallelizer(self, name: str) -> Parallelizer:
        """The cached parallelizer of this name, created on first use. Raises UnknownNameError."""
        if name not in self.parallelizers:
            self.parallelizers[name] = made = parallelizer_named(name)()
            if isinstance(made, Grid):
                made.menus = _MENUS
        return self.parallelizers[name]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Context in which all searches of this thread use this cache."""
        before = _IN_USE.set(self)
        try:
            with self._prices.in_use():
                yield
        finally:
            _IN_USE.reset(before)


def parallelizer_in_use(name: str) -> Parallelizer:
    """The parallelizer of this name, from the cache if one is in use. Raises UnknownNameError."""
    memory = _IN_USE.get()
    return memory.parallelizer(name) if memory else parallelizer_named(name)()


_IN_USE: ContextVar[SearchMemory | None] = ContextVar("search_memory", default=None)
