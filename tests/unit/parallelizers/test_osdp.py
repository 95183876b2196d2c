"""OSDP: what is sharded under which memory limit, and what splitting an operator buys."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from tangram_sim.layers.atoms import atoms_of
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.parallelizers.osdp import OSDP, OSDPExact
from tangram_sim.training.stage import state
from tangram_sim.training.stage.setting import Setting
from tests.contracts.requests import island, request
from tests.unit.parallelizers.test_galvatron import best

# One GPU per node and many microbatches: gathering weights costs time that nothing hides.
WHERE = island("V100-PCIe-16GB", "PCIe3x16", nodes=4, gpus=1)
ASKED = request(where=WHERE, microbatch=4, microbatches=32, constraints=Constraints(recompute=("none",)))


class Unsplit(OSDP):
    """Without operator splitting."""

    def strategies(self, request, gpus):
        return (layout for layout in super().strategies(request, gpus) if layout.slices == 1)


def within(memory_bytes):
    """The question on GPUs of another size."""
    gpu = replace(ASKED.island.gpu, memory_bytes=memory_bytes)
    return replace(ASKED, island=replace(ASKED.island, gpu=gpu))


def sharded_layers(partial):
    runs = partial.runs or ()
    if not runs:
        return 26 if partial.layout.zero_stage == 3 else 0
    return sum(run.stop - run.start for run in runs if run.layout.zero_stage == 3)


@lru_cache(maxsize=2)
def least_bytes(kind):
    """Memory below which nothing fits, by bisection."""
    low, high = 8e9, 16e9
    while high - low > 60e6:
        middle = (low + high) / 2
        low, high = (low, middle) if kind().parallelize(within(middle)).partials else (middle, high)
    return high


def test_memory_decides_how_much_is_sharded():
    """All replicated with plenty, all sharded with least, a mix between; less memory never shards less."""
    least = least_bytes(OSDP)
    layers = [sharded_layers(best(OSDP(), within(size))[1]) for size in (least, 16e9, 20e9, 24e9, 28e9, 60e9)]
    assert layers[0] == 26
    assert layers[-1] == 0
    assert layers == sorted(layers, reverse=True)
    assert any(0 < number < 26 for number in layers)


def test_a_mix_uses_the_memory_up_to_one_layer():
    _, partial = best(OSDP(), within(20e9))
    stage = partial.stages[0]
    replicated = 16 * max(atom.parameters(2048) for atom in atoms_of(ASKED.slice.model)[1:-1])
    assert 0 < sharded_layers(partial) < 26
    assert stage.capacity_bytes - replicated < stage.peak_bytes(1) <= stage.capacity_bytes


def test_splitting_is_never_slower_and_needs_less_memory():
    """The paper's two claims for operator splitting."""
    for size in (12e9, 14e9, 18e9, 24e9):
        plain = Unsplit().parallelize(within(size)).partials
        if plain:
            assert best(OSDP(), within(size))[0] <= best(Unsplit(), within(size))[0] * (1 + 1e-9)
    assert least_bytes(OSDP) < least_bytes(Unsplit) - 200e6


def test_slices_shrink_what_is_gathered_and_cost_a_latency_each():
    layouts = tuple(Layout(dp=4, zero_stage=3, slices=slices) for slices in (1, 2, 4))
    setting = Setting(ASKED.slice.model, ASKED.island, ASKED.job, 4, layouts, ASKED.hwdb)
    block = atoms_of(ASKED.slice.model)[1]
    held = state.held(setting, block)
    assert held.static[0] == held.static[1] == held.static[2]
    gathered = held.transient * np.array([1, 2, 4])
    assert gathered == pytest.approx(np.full(3, gathered[0]))
    seconds = state.sharded_weights_gather_s(setting, block)
    assert np.diff(seconds) == pytest.approx(
        setting.rates.data_exposed * setting.dp_group.once.start[0] * np.array([1.0, 2.0])
    )


def test_the_exact_program_is_no_worse_than_the_mix():
    for size in (14e9, 20e9):
        assert best(OSDPExact(), within(size))[0] <= best(OSDP(), within(size))[0] * (1 + 1e-9)
