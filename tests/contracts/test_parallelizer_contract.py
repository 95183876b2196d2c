"""The narrow API: the contract on `grid` and on a third party's plug-in, and what is special to `grid`."""

import sys
from collections.abc import Iterator
from dataclasses import astuple, replace

import numpy as np
import pytest

from tangram_sim import registry
from tangram_sim.clusters import Island
from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.layers.atoms import Slice
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.api import Answer, Constraints, Parallelizer, Rejection, Request
from tangram_sim.parallelizers.contract import check_parallelizer
from tangram_sim.parallelizers.grid import Grid
from tangram_sim.parallelizers.layouts import layouts
from tangram_sim.training.job import Job
from tangram_sim.training.plan import UNLIMITED, PartialPlan

HWDB = Hwdb.load()

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


def island(gpu="V100-SXM2-16GB", link="NVLink2", nodes=1, gpus=4) -> Island:
    return Island("i", HWDB.gpu(gpu), nodes, gpus, HWDB.link(link), 12.5e9, 10e-6)


def request(
    name="gpt3-1.3b", where=None, atoms=(0, None), microbatch=8, microbatches=8, job=None, constraints=None
) -> Request:
    model, where = load_model(name), where or island()
    start, stop = atoms
    dtype = "bf16" if where.gpu.peak_flop_per_s("bf16") else "fp16"
    return Request(
        Slice(model, start, model.layers + 2 if stop is None else stop),
        where,
        job or Job(seq=1024, dtype=dtype),
        microbatch,
        microbatches,
        HWDB,
        constraints or Constraints(),
    )


T4_SIX = island("T4", "PCIe3x16", gpus=6)
REQUESTS = {
    "tight": request(),
    "six GPUs": request(where=T4_SIX, atoms=(0, 10), microbatch=6),
    "experts, two nodes": request("mixtral-8x7b", island("A100-SXM4-80GB", "NVLink3", 2, 8), (0, 9), 16),
    "alternating experts": request("gshard-moe-2.4b", atoms=(1, 7), microbatch=4),
    "windows": request("gemma2-9b", island("H100-SXM5-80GB", "NVLink4", 1, 8), (20, None)),
    "nothing fits": request("gpt3-6.7b", island("T4", "PCIe3x16", gpus=2), microbatch=2),
    "one GPU": request(where=island(gpus=1), atoms=(3, 6), microbatch=2),
    "gpipe": request(
        "llama2-7b",
        island("A100-SXM4-40GB", "NVLink3"),
        (3, 5),
        4,
        16,
        Job(seq=2048, dtype="bf16", schedule="gpipe"),
    ),
    "zero bubble": request(atoms=(0, 4), job=Job(seq=1024, dtype="fp16", schedule="zb-h1")),
    "few atoms": request(atoms=(2, 4)),
    "user's wishes": request(
        constraints=Constraints(fixed=(("tp", 2),), recompute=("full",), sequence_parallel=True)
    ),
}


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


def test_a_third_partys_plugin_is_found_and_keeps_the_contract(plugin):
    """By entry point alone: the library neither imports nor names it."""
    assert plugin in registry.parallelizer_names()
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


def test_a_contract_without_requests_is_no_contract():
    """An empty list must not pass silently."""
    with pytest.raises(AssertionError, match="nothing was checked"):
        check_parallelizer(Grid(), [])


@pytest.mark.parametrize("name", ["six GPUs", "few atoms"])
def test_the_answer_is_the_pareto_set_of_all_layouts(name):
    """Brute force: price every layout alone, drop what another beats in everything, of equals keep one."""
    asked = REQUESTS[name]
    grid = Grid()
    answer = grid.parallelize(asked)
    every = {}
    for layout in layouts(asked.slice.model, asked.island.gpus, (1, 2, 3, 4, 6)):
        try:
            every[layout] = grid.price(asked, layout)
        except InfeasibleError:
            continue

    def costs(partial: PartialPlan) -> tuple[float, ...]:
        stages, hop = partial.stages, partial.hop_s
        forward = sum(stage.forward_s for stage in stages) + hop * (len(stages) - 1)
        closing = max(  # each stage's tail ends after everything before and behind it
            sum(stage.forward_s + hop for stage in stages[:place])
            + sum(stage.forward_s + stage.backward_s for stage in stages[place:])
            + 2 * hop * (len(stages) - 1 - place)
            + stages[place].gradient_sync_s
            + stages[place].optimizer_s
            for place in range(len(stages))
        )
        return (partial.slowest_s, partial.latency_s, forward, closing, len(stages), -partial.stages_behind)

    feasible = {layout: costs(partial) for layout, partial in every.items() if partial.stages_behind >= 0}
    assert len(feasible) == len(answer.partials) + answer.dominated
    answered = {partial.layout for partial in answer.partials}
    best = set()
    for mine in feasible.values():
        beaten = any(
            other != mine
            and all(
                theirs <= ours * (1 + 1e-12) if ours >= 0 else theirs <= ours
                for theirs, ours in zip(other, mine, strict=True)
            )
            for other in feasible.values()
        )
        if not beaten:
            best.add(tuple(np.round(mine, 12)))
    assert {tuple(np.round(feasible[layout], 12)) for layout in answered} >= best
    for layout, mine in feasible.items():
        assert any(
            all(theirs <= ours + 1e-12 for theirs, ours in zip(feasible[other], mine, strict=True))
            for other in answered
        ), layout


def test_degrees_are_not_powers_of_two_only():
    """Six GPUs: 2 x 3 in every role, and three inner stages of two."""
    asked = replace(REQUESTS["six GPUs"], slice=Slice(load_model("gpt2"), 0, 14))
    grid = Grid()
    for layout in (
        Layout(tp=3, dp=2),
        Layout(tp=2, dp=3),
        Layout(dp=6),
        Layout(tp=6),
        Layout(dp=2, pp=3),
        Layout(tp=3, pp=2),
    ):
        if 1024 % layout.cp == 0:
            assert grid.price(asked, layout).layout == layout
    with pytest.raises(InfeasibleError, match="cp=3 does not divide"):
        grid.price(asked, Layout(cp=3, dp=2))


def test_the_largest_share_of_an_uneven_microbatch_sets_the_time():
    """7 sequences over 4 ranks take as long as 8, and longer than 4."""
    four, seven, eight = (
        Grid().price(request(atoms=(1, 9), microbatch=size), Layout(dp=4)).stages[0] for size in (4, 7, 8)
    )
    assert seven == eight
    assert four.forward_s < seven.forward_s
    assert four.activation_bytes == seven.activation_bytes / 2


def test_a_rank_without_a_sequence_is_refused_with_its_numbers():
    """dp = 4 on 3 sequences would leave a rank idle."""
    with pytest.raises(InfeasibleError, match=r"dp=4 .* 3 sequences"):
        Grid().price(request(microbatch=3), Layout(dp=4))


def test_inner_pipelines_stay_on_one_node():
    """Pipelines over nodes are the composition's: counted here too they would be counted twice."""
    one, two = (Grid().parallelize(request(where=island(nodes=nodes), atoms=(1, 9))) for nodes in (1, 2))
    assert any(partial.layout.pp > 1 for partial in one.partials)
    assert not any(partial.layout.pp > 1 for partial in two.partials)
    assert not any(rejection.layout.pp > 1 for rejection in two.rejected)


def test_an_inner_pipeline_is_stages_with_a_hop_between():
    """Cuts cover the slice, each inner stage is priced as a stage of its own on its share of the node."""
    asked = request(atoms=(1, 9))
    grid = Grid()
    partial = grid.price(asked, Layout(dp=2, pp=2))
    assert partial.cuts == (1, 5, 9)
    assert partial.hop_s > 0
    alone = grid.price(
        replace(asked, slice=Slice(asked.slice.model, 1, 5), island=asked.island.part(1, 2)), Layout(dp=2)
    )
    for stage in partial.stages:  # equal up to the rounding of prefix sums
        assert astuple(stage) == pytest.approx(astuple(alone.stages[0]), rel=1e-12)


def test_more_inner_stages_than_atoms_is_a_rejection_with_numbers():
    """Not a silent skip: four inner stages of two atoms are in the list, with the reason."""
    asked = REQUESTS["few atoms"]
    answer = Grid().parallelize(asked)
    reasons = {rejection.layout: rejection.reason for rejection in answer.rejected}
    assert reasons[Layout(pp=4)] == "pp=4 inner stages, but the slice has only 2 atoms to cut"
    with pytest.raises(InfeasibleError):
        Grid().price(asked, Layout(pp=4))


def test_memory_rejections_need_more_than_there_is():
    """Also for inner pipelines, whose front stages hold several microbatches."""
    rejected = [
        rejection for rejection in Grid().parallelize(REQUESTS["tight"]).rejected if rejection.needed_bytes
    ]
    assert {rejection.layout.pp for rejection in rejected} >= {1, 2, 4}
    for rejection in rejected:
        assert rejection.needed_bytes > rejection.capacity_bytes > 0
        assert "per GPU" in rejection.reason


def test_every_dimension_is_searched():
    """TP, DP, CP, EP, inner PP, ZeRO, recomputation and sequence parallelism all occur among the layouts."""
    asked = request("gshard-moe-2.4b", island("A100-SXM4-80GB", "NVLink3", 1, 8), (1, 5))
    grid = Grid()
    for layout in (
        Layout(tp=8, sequence_parallel=True),
        Layout(dp=8, ep=8),
        Layout(cp=8),
        Layout(dp=2, cp=2, tp=2, ep=4, zero_stage=3, recompute="full"),
        Layout(dp=4, pp=2, ep=2, zero_stage=2),
    ):
        assert grid.price(asked, layout).stages_behind == UNLIMITED


def test_equal_slices_cost_the_same_wherever_they_lie():
    """The composition asks once for equal signatures: nothing but the position may differ."""
    here, there = (Grid().parallelize(request(atoms=atoms)) for atoms in ((2, 6), (9, 13)))
    assert len(here.partials) == len(there.partials)
    for mine, other in zip(here.partials, there.partials, strict=True):
        assert mine.layout == other.layout
        assert mine.slowest_s == pytest.approx(other.slowest_s, rel=1e-12)
        assert [cut - 2 for cut in mine.cuts] == [cut - 9 for cut in other.cuts]


def test_one_grid_serves_many_questions_without_mixing_them():
    """Caches are keyed by all that matters: answers of one instance equal those of fresh ones."""
    grid = Grid()
    variants = [
        request(),
        request(microbatch=4),
        request(microbatches=2),
        request(job=Job(seq=512, dtype="fp16")),
        request(job=Job(seq=1024, dtype="fp16", optimizer="sgd")),
        request(where=island(gpus=2)),
        request(constraints=Constraints(fixed=(("tp", 1),))),
        replace(request(), hwdb=Hwdb.load()),
    ]
    for asked in [*variants, *variants[::-1]]:
        assert grid.parallelize(asked).partials == Grid().parallelize(asked).partials
