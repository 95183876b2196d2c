"""Slices priced together: the same answers as one by one, and none below what compute takes at least."""

from dataclasses import replace

import pytest

from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.layers.atoms import Slice
from tangram_sim.parallelizers.api import Request
from tangram_sim.parallelizers.grid import Grid
from tangram_sim.placement.islands import find_islands
from tangram_sim.training.job import Job

HWDB = Hwdb.load()
SLICES = ((0, 1), (0, 4), (1, 3), (5, 12), (20, 26), (0, 26), (25, 26))


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("microbatch", [1, 8])
def test_slices_priced_together_are_priced_as_alone(nodes: int, microbatch: int) -> None:
    model, job = load_model("gpt2-medium"), Job(64, 1024, "fp16")
    island = find_islands(load_cluster("azure-c2", HWDB), "fp16", hwdb=HWDB)[0].part(nodes)
    requests = [
        Request(Slice(model, *ends), island, job, microbatch, 64 // microbatch, HWDB) for ends in SLICES
    ]
    sized = [replace(request, sizes=(4, microbatch, 2)) for request in requests]
    together, lowered_together = Grid().parallelize_many(requests), Grid().parallelize_many(sized)
    for request, answer, other in zip(requests, together, lowered_together, strict=True):
        alone = Grid().parallelize(request)
        assert answer.partials == alone.partials == other.partials
        assert list(other.rejected) == list(alone.rejected)
        assert (answer.considered, answer.dominated) == (alone.considered, alone.dominated)
        assert list(answer.rejected) == list(alone.rejected)


@pytest.mark.parametrize(
    ("name", "cluster"),
    [("gpt2-medium", "azure-c2"), ("llama3-405b", "azure-c1")],  # the second: most layouts hold no block
)
@pytest.mark.parametrize("nodes", [1, 2])
def test_no_partial_plan_takes_less_than_compute_alone(name: str, cluster: str, nodes: int) -> None:
    """The law that prunes questions: GPU-seconds of the atoms bound every layout's stage."""
    model, job, microbatch = load_model(name), Job(64, 1024, "fp16"), 8
    ends_of = [(start, min(stop, model.layers + 2)) for start, stop in SLICES if start < model.layers]
    ends_of.append((model.layers + 1, model.layers + 2))
    for island in find_islands(load_cluster(cluster, HWDB), "fp16", hwdb=HWDB):
        part, grid = island.part(min(nodes, island.nodes)), Grid()
        for ends in ends_of:
            request = Request(Slice(model, *ends), part, job, microbatch, 8, HWDB)
            least_s = grid.least_seconds(request)[slice(*ends)].sum() * microbatch / part.gpus
            answer = grid.parallelize(request)
            assert name != "gpt2-medium" or (answer.partials and least_s > 0)
            for partial in answer.partials:
                assert partial.slowest_s >= least_s * (1 - 1e-9)
