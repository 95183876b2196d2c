"""The memory margin: the upper end of a peak's interval fits, and what stands where nothing leaves it."""

import math
from dataclasses import replace

import pytest

from tangram_sim.clusters import Cluster, Node, NodeGroup
from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.studies import api, comparison
from tangram_sim.studies.margin import NO_MARGIN, auto_margin
from tangram_sim.training.job import Job
from tangram_sim.training.step.intervals import worst_residual

HWDB = Hwdb.load()
MODEL = load_model("gpt3-1.3b")
JOB = Job(global_batch=16, seq=1024, dtype="fp16")


def _cluster(memory_bytes: float = 16e9) -> Cluster:
    gpu = replace(HWDB.gpu("V100-PCIe-16GB"), memory_bytes=memory_bytes)
    return Cluster("two", (NodeGroup("g0", 2, Node(gpu, 2, HWDB.link("PCIe3x16"), 12.5e9)),))


def _fullest(document) -> float:
    return max(stage.peak_memory_bytes / stage.memory_capacity_bytes for stage in document.stages)


def test_by_default_what_a_fitted_peak_is_off_by_stays_free() -> None:
    """1 - exp(-1.645 r) of every GPU, r the residual error of peaks of stacks that were fitted."""
    residual = worst_residual([HWDB.gpu("V100-PCIe-16GB")], JOB, HWDB)
    margin = auto_margin(_cluster(), JOB, HWDB)
    assert margin == pytest.approx(1 - math.exp(-1.6448536 * residual.memory_plan))
    found = api.plan(MODEL, _cluster(), JOB, hwdb=HWDB).document
    assert found.memory_margin == margin
    assert _fullest(found) <= 1 - margin
    assert found.peak_memory_bytes_high > found.peak_memory_bytes
    assert api.simulate(found, hwdb=HWDB).document.step_s == pytest.approx(found.step_s, rel=1e-9)


@pytest.fixture(scope="module")
def brim() -> Cluster:
    """Memory that the best plan with none to spare fills to 97 %, and no plan fills less than 93 %."""
    tight = SearchOptions(memory_margin=0.0)
    low, high = 3e9, 16e9
    while high / low > 1.02:  # the least memory that holds a plan at all
        middle = math.sqrt(low * high)
        try:
            api.plan(MODEL, _cluster(middle), JOB, wishes=tight, hwdb=HWDB)
            high = middle
        except InfeasibleError:
            low = middle
    return _cluster(high)


@pytest.mark.slow
def test_a_model_that_fits_only_without_the_margin_gets_a_plan_and_a_warning(brim: Cluster) -> None:
    """The default margin never makes a plan impossible; one that was asked for is named as the reason."""
    found = api.plan(MODEL, brim, JOB, hwdb=HWDB).document
    assert found.memory_margin == 0.0
    assert NO_MARGIN.among(found.findings)
    with pytest.raises(InfeasibleError, match="`memory_margin=0`"):
        api.plan(MODEL, brim, JOB, wishes=SearchOptions(memory_margin=0.1), hwdb=HWDB)
    (answer,) = comparison.compare_planners(MODEL, brim, JOB, ["tangram"], hwdb=HWDB)
    assert answer.status == comparison.OK
    assert any("of the memory free" in note for note in answer.result.document.notes)


def test_without_any_plan_the_reason_is_the_model_not_the_margin() -> None:
    """What is too small with and without a margin says what is needed, as before."""
    with pytest.raises(InfeasibleError, match="fits no plan"):
        api.plan(MODEL, _cluster(2e9), JOB, hwdb=HWDB)


@pytest.mark.parametrize("margin", [-0.1, 0.95, 1.0, math.nan])
def test_a_margin_is_a_share_that_leaves_room(margin: float) -> None:
    """Anything else is named with what may be given."""
    with pytest.raises(BadInputError, match="`memory_margin="):
        api.plan(MODEL, _cluster(), JOB, wishes=SearchOptions(memory_margin=margin), hwdb=HWDB)
