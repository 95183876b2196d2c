"""Partial plans of every parallelizer, as the enumerator scores them, played by the SimPy reference.

Stages without repeated blocks, and short ones, agree to 1e-9. Where equal blocks repeat the enumerator plays
a few of them and extrapolates, and where a long slice holds the far end of the model it adds that end's
marginal time: these agree to 1e-3. Where layers of one stage are laid out differently its runs are summed one
by one, which is never less than what is played; whole plans play such stages as they are.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tangram_sim import registry
from tangram_sim.clusters import Island
from tangram_sim.hwdb import Hwdb
from tangram_sim.layers.atoms import Slice
from tangram_sim.layers.program import CLOSING, COMPUTE
from tangram_sim.models import Attention, Block, Experts, FeedForward, Model
from tangram_sim.opgraph import OpGraph
from tangram_sim.parallelizers.api import Request
from tangram_sim.sim import reference
from tangram_sim.training.job import Job
from tangram_sim.training.plan import PartialPlan
from tangram_sim.training.stage import state
from tangram_sim.training.stage.pricing import WINDOW, Pricer
from tangram_sim.training.stage.reductions import backward_directions
from tangram_sim.training.stage.runs import LayerRun, programs_of, with_one_copy
from tangram_sim.training.stage.setting import Setting
from tests.slices import chain_graph

HWDB = Hwdb.load()
PARALLELIZERS = tuple(name for name in registry.names(registry.PARALLELIZERS) if name != "external")
SLICES = 20  # of each parallelizer: 200 in all
MOST_ABOVE = 1.15  # of a stage with several layouts over its play
MOST_PARTIALS = 3  # of one answer that are played
PLACES = (("V100-SXM2-16GB", "NVLink2"), ("T4", "PCIe3x16"), ("A100-SXM4-80GB", "NVLink3"))


def generated(draw: random.Random) -> Request:
    """A slice of a made-up model on a small island; every other model repeats one block."""
    layers, hidden = draw.randint(2, 9), draw.choice([256, 512, 1024])
    equal = draw.random() < 0.5

    def block(number: int) -> Block:
        width = hidden * 4 if equal else hidden * 2 + 64 * number
        heads = hidden // 64
        part: FeedForward | Experts = FeedForward(width, gated=draw.random() < 0.5)
        if mixture:
            part = Experts(experts=4, active=2, width=width)
        return Block(Attention(heads, heads, 64, 64), part)

    mixture = draw.random() < 0.25
    blocks = (block(0),) * layers if equal else tuple(block(number) for number in range(layers))
    model = Model("made-up", "test", hidden, 32000, blocks, tied=draw.random() < 0.5)
    gpu, link = draw.choice(PLACES)
    nodes, gpus = draw.choice([(1, 1), (1, 2), (1, 4), (2, 2), (2, 4)])
    place = Island("i", HWDB.gpu(gpu), nodes, gpus, HWDB.link(link), 3e9, 10e-6)
    start = draw.randint(0, layers)
    stop = draw.randint(start + 1, layers + 2)
    job = Job(
        seq=draw.choice([256, 1024]),
        dtype="bf16" if place.gpu.peak_flop_per_s("bf16") else "fp16",
        schedule=draw.choice(["1f1b", "1f1b", "gpipe", "zb-h1"]),
    )
    return Request(Slice(model, start, stop), place, job, draw.choice([4, 8]), draw.choice([4, 16]), HWDB)


def runs_of(request: Request, partial: PartialPlan, low: int, high: int) -> tuple[LayerRun, ...]:
    """The runs of an inner stage of atoms [low, high), each under a pricer of its one layout."""
    depth, place = partial.layout.pp, request.island
    part = place if depth == 1 else place.part(place.nodes, place.gpus_per_node // depth)
    named = [(run.start, run.stop, run.layout) for run in partial.runs] or [
        (partial.start, partial.stop, partial.layout)
    ]
    runs = tuple(
        LayerRun(
            Pricer(
                Setting(
                    request.slice.model,
                    part,
                    request.job,
                    request.microbatch,
                    (replace(layout, pp=1),),
                    HWDB,
                )
            ),
            max(start, low),
            min(stop, high),
        )
        for start, stop, layout in named
        if start < high and stop > low
    )
    return with_one_copy([runs])[0]


def graph_of(runs: Sequence[LayerRun], direction: str) -> OpGraph:
    programs = programs_of(runs, direction)
    return chain_graph([program for program, _ in programs], [name for _, name in programs])


def played_s(graph: OpGraph, closes: bool = True) -> float:
    """When SimPy ends; nothing waits for the host's last launch, nor for weights fetched ahead.

    What only the last backward pass of a step does counts where that pass `closes` the step.
    """
    waited = [
        graph.label_of(op).split(": ")[1] not in ("launch", "weights")
        and (closes or graph.resource[op] != CLOSING)
        for op in range(len(graph))
    ]
    return float(reference.play(graph).end_s[waited].max())


def differences(request: Request, partial: PartialPlan) -> list[tuple[float, bool]]:
    """(largest relative difference, whether it must be exact) of every inner stage."""
    found = []
    middle, last = backward_directions(request.job)
    model = request.slice.model
    for (low, high), stage in zip(
        zip(partial.cuts, partial.cuts[1:], strict=False), partial.stages, strict=True
    ):
        runs = runs_of(request, partial, low, high)
        behind = sum(
            float(state.behind_last_pass_s(run.pricer.setting, atom)[0]) for run in runs for atom in run.atoms
        )
        closed = max(stage.backward_s, played_s(graph_of(runs, last))) + behind
        scored = (stage.forward_s, stage.backward_s, stage.backward_s + stage.gradient_sync_s)
        backward = played_s(graph_of(runs, middle), closes=False)
        pairs = list(zip(scored, (played_s(graph_of(runs, "forward")), backward, closed), strict=True))
        if len(runs) > 1:  # summed run by run: never less than what is played
            pairs = [(min(a, b) if a < MOST_ABOVE * b else a, b) for a, b in pairs]
        repeats = len(set(model.blocks)) < model.layers
        long = high - low > WINDOW + 1
        exact = (
            not long
            or (len(runs) > 1 and not repeats)
            or not (repeats or low == 0 or high == model.layers + 2)
        )
        found.append((max(abs(a - b) / b for a, b in pairs), exact))
    return found


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == "alpa" else ()) for name in PARALLELIZERS],
)
def test_partial_plans_are_what_simpy_plays(name: str) -> None:
    draw, asked, exact, extrapolated = random.Random(f"37 {name}"), 0, 0, 0
    parallelizer = registry.parallelizer(name)()
    while asked < SLICES:
        request = generated(draw)
        partials = parallelizer.parallelize(request).partials
        if not partials:
            continue
        asked += 1
        for partial in draw.sample(partials, min(len(partials), MOST_PARTIALS)):
            for difference, to_the_bit in differences(request, partial):
                assert difference < (1e-9 if to_the_bit else 1e-3), (name, asked, partial)
                exact += to_the_bit
                extrapolated += not to_the_bit
    assert exact >= 1 and exact + extrapolated >= SLICES


def test_one_kernel_that_takes_a_hundredth_longer_is_seen() -> None:
    draw = random.Random(1)
    request = generated(draw)
    partial = registry.parallelizer("grid")().parallelize(request).partials[0]
    runs = runs_of(request, partial, *partial.cuts[:2])
    graph = graph_of(runs, "forward")
    longest = int(np.argmax(np.where(graph.resource == COMPUTE, graph.duration_s, 0.0)))
    slower = graph.duration_s.copy()
    slower[longest] *= 1.01
    stage = partial.stages[0]
    assert played_s(graph) == pytest.approx(stage.forward_s, rel=1e-3)
    assert played_s(graph.with_durations(slower)) > stage.forward_s * (1 + 1e-4)
