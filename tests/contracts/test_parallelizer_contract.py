"""The narrow API: the contract on `grid` and on a third party's plug-in, and what is special to `grid`."""

import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tangram_sim import registry
from tangram_sim.hwdb import load_model
from tangram_sim.layers.atoms import Slice
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.api import Answer, Constraints, Parallelizer, Rejection, Request
from tangram_sim.parallelizers.contract import check_parallelizer
from tangram_sim.parallelizers.grid import Grid
from tangram_sim.training.plan import PartialPlan
from tests.contracts.requests import REQUESTS

DATA_PARALLEL_PLUGIN = '''
"""A third party's planner: plain data parallelism, ZeRO 0 or 1, priced by the library."""

from tangram_sim.errors import InfeasibleError
from tangram_sim.layouts import Layout
from tangram_sim.training.stage.prices import StagePrices
from tangram_sim.parallelizers.api import Answer, Parallelizer, Rejection
from tangram_sim.training.plan import UNLIMITED, PartialPlan


class DataParallel(Parallelizer):
    name = "data-parallel"

    def parallelize(self, request):
        partials, rejected = [], []
        for zero in (0, 1):
            layout = Layout(dp=request.island.gpus, zero_stage=zero)
            try:
                partial = self.price(request, layout)
            except InfeasibleError as error:
                rejected.append(Rejection(layout, str(error)))
                continue
            if partial.stages_behind < 0:
                stage = partial.stages[0]
                rejected.append(Rejection(layout, "memory", stage.peak_bytes(1), stage.capacity_bytes))
            else:
                partials.append(partial)
        kept = partials
        if len(partials) == 2:
            plain, sharded = partials
            better = plain.latency_s <= sharded.latency_s and plain.tail_s <= sharded.tail_s
            if better and plain.stages_behind >= sharded.stages_behind:
                kept = [plain]
            elif sharded.tail_s <= plain.tail_s and sharded.latency_s <= plain.latency_s:
                kept = [sharded]
        return Answer(tuple(kept), tuple(rejected), 2, len(partials) - len(kept))

    def price(self, request, layout):
        if layout.dp != request.island.gpus or layout.dp > request.microbatch:
            raise InfeasibleError(f"{layout} does not fill {request.island.gpus} GPUs with data")
        part, job = request.slice, request.job
        stages = StagePrices(part.model, job, request.hwdb)
        stage = stages.price(request.island, layout, request.microbatch, part.start, part.stop)
        limit = stage.in_flight_limit()
        behind = UNLIMITED if limit >= request.microbatches else limit - 1
        return PartialPlan(
            start=part.start,
            stop=part.stop,
            island=request.island.name,
            nodes=request.island.nodes,
            layout=layout,
            microbatch=request.microbatch,
            cuts=(part.start, part.stop),
            stages=(stage,),
            hop_s=0.0,
            stages_behind=behind,
            boundary_bytes=job.boundary_bytes(part.model, request.microbatch),
        )
'''


@pytest.fixture
def plugin(tmp_path, monkeypatch) -> Iterator[str]:
    """A distribution installed beside the library: a module and the entry point that names it."""
    (tmp_path / "their_planner.py").write_text(DATA_PARALLEL_PLUGIN)
    info = tmp_path / "their_planner-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-planner\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[tangram_sim.parallelizers]\ndata-parallel = their_planner:DataParallel\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "data-parallel"
    sys.modules.pop("their_planner", None)


@pytest.mark.parametrize("asked", REQUESTS.values(), ids=REQUESTS)
def test_grid_keeps_the_contract(asked):
    """Every clause, on a range of islands, models, schedules and wishes."""
    check_parallelizer(Grid(), [asked])


@pytest.mark.parametrize(
    "name", [name for name in registry.names(registry.PARALLELIZERS) if name != "external"]
)
def test_one_instance_answers_other_jobs_hardware_and_wishes_as_a_new_one_does(name):
    """What an instance keeps hangs on the whole request: one memory of searches serves them all."""
    asked, kept = REQUESTS["few atoms"], registry.parallelizer(name)()
    others = [
        asked,
        replace(asked, hwdb=asked.hwdb.filled_to(0.5)),
        replace(asked, hwdb=asked.hwdb.with_rings_only()),
        replace(asked, job=replace(asked.job, seq=asked.job.seq * 2)),
        replace(asked, constraints=Constraints(fixed=(("tp", 2),))),
    ]
    for request in [*others, asked]:
        assert (
            kept.parallelize(request).partials == registry.parallelizer(name)().parallelize(request).partials
        )


def test_a_third_partys_plugin_is_found_and_keeps_the_contract(plugin):
    """By entry point alone: the library neither imports nor names it."""
    assert plugin in registry.names(registry.PARALLELIZERS)
    theirs = registry.parallelizer(plugin)
    assert theirs.__module__ == "their_planner"
    # It knows no constraints beyond its own layouts, so it is not asked about a user's wishes.
    check_parallelizer(theirs(), [asked for name, asked in REQUESTS.items() if name != "user's wishes"])


def test_a_plugin_and_grid_price_alike(plugin):
    """One cost model for all: the same layout costs the same, whoever proposes it."""
    asked = REQUESTS["tight"]
    theirs = registry.parallelizer(plugin)()
    for layout in (Layout(dp=4), Layout(dp=4, zero_stage=1)):
        mine = Grid().price(asked, layout)
        assert replace(theirs.price(asked, layout), measured=mine.measured) == mine


def test_plugins_serve_the_papers_functions():
    """slice_model cuts at atoms, concatenate joins neighbours only."""
    model = load_model("gpt3-1.3b")
    atoms = Grid().slice_model(model)
    assert len(atoms) == model.layers + 2
    assert Grid().concatenate(atoms[0], atoms[1]) == Slice(model, 0, 2)
    with pytest.raises(ValueError, match="do not touch"):
        Grid().concatenate(atoms[0], atoms[2])


class Broken(Parallelizer):
    """Grid with one clause broken by `spoil`."""

    name = "broken"

    def parallelize(self, request: Request) -> Answer:
        return self.spoil(Grid().parallelize(request))

    def price(self, request: Request, layout: Layout) -> PartialPlan:
        return Grid().price(request, layout)

    def spoil(self, answer: Answer) -> Answer:
        raise AssertionError("not used")


def _with_first(answer: Answer, **changes) -> Answer:
    return replace(answer, partials=(replace(answer.partials[0], **changes), *answer.partials[1:]))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda answer: _with_first(answer, layout=Layout(dp=64)), "occupies 64 GPUs of 4"),
        (lambda answer: _with_first(answer, stages_behind=7), r"price\("),
        (lambda answer: _with_first(answer, stop=3), "covers atoms"),
        (lambda answer: _with_first(answer, cuts=(0, 0, 26)), "cuts"),
        (lambda answer: replace(answer, partials=answer.partials * 2), "answered twice"),
        (lambda answer: replace(answer, considered=answer.considered + 1), "layouts considered"),
        (
            lambda answer: replace(
                answer,
                rejected=(Rejection(Layout(tp=3), " "),),
                considered=answer.considered + 1 - len(answer.rejected),
            ),
            "without a reason",
        ),
        (
            lambda answer: replace(
                answer,
                rejected=(Rejection(Layout(tp=4), "too large", 1.0, 2.0),),
                considered=answer.considered + 1 - len(answer.rejected),
            ),
            "rejected for 1 bytes of 2",
        ),
    ],
)
def test_the_contract_catches(spoil, message):
    """A check that nothing fails checks nothing."""

    class Spoiled(Broken):
        def spoil(self, answer: Answer) -> Answer:
            return spoil(answer) if answer.partials else answer

    with pytest.raises(AssertionError, match=message):
        check_parallelizer(Spoiled(), [REQUESTS["tight"]])


def test_the_contract_catches_stale_prices():
    """A planner that ignores the sequence length (a cached price) breaks clause 7."""

    class Stale(Broken):
        def parallelize(self, request: Request) -> Answer:
            return Grid().parallelize(self.frozen(request))

        def price(self, request: Request, layout: Layout) -> PartialPlan:
            return Grid().price(self.frozen(request), layout)

        def frozen(self, request: Request) -> Request:
            return replace(request, job=replace(request.job, seq=1024))

    with pytest.raises(AssertionError, match="no slower"):
        check_parallelizer(Stale(), [REQUESTS["tight"]])


def test_the_contract_catches_dice():
    """A planner that answers differently each time breaks clause 1."""

    class Dice(Broken):
        thrown = 0

        def parallelize(self, request: Request) -> Answer:
            Dice.thrown += 1
            answer = Grid().parallelize(request)
            return replace(answer, dominated=answer.dominated + Dice.thrown)

    with pytest.raises(AssertionError, match="differently"):
        check_parallelizer(Dice(), [REQUESTS["tight"]])


def test_the_contract_catches_a_bound_that_is_none():
    """What takes less than `least_seconds` would be pruned unseen."""

    class Boasting(Grid):
        def least_seconds(self, request: Request) -> np.ndarray:
            return 1.5 * super().least_seconds(request)

    with pytest.raises(AssertionError, match=r"less than the .* that least_seconds gives"):
        check_parallelizer(Boasting(), [REQUESTS["six GPUs"]])


def test_the_contract_catches_answers_of_many_that_are_not_those_of_one():
    """A subclass of the grid that changes one way of asking and not the other breaks clause 8."""

    class Fewer(Grid):
        def parallelize(self, request: Request) -> Answer:
            answer = super().parallelize(request)
            return replace(answer, partials=answer.partials[:-1])

    with pytest.raises(AssertionError, match="parallelize_many answers otherwise"):
        check_parallelizer(Fewer(), [REQUESTS["six GPUs"]])


def test_a_contract_without_requests_is_no_contract():
    """An empty list must not pass silently."""
    with pytest.raises(AssertionError, match="nothing was checked"):
        check_parallelizer(Grid(), [])
