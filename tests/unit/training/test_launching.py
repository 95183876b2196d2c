"""The host's launches beside the device: neither hides the other without gaps."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_sim import Job, load_model
from tangram_sim.clusters import Island
from tangram_sim.hwdb import Hwdb
from tangram_sim.layouts import Layout
from tangram_sim.training.stage.launching import HANDOVER, gaps_s
from tangram_sim.training.stage.pricing import Pricer
from tangram_sim.training.stage.setting import Setting

HWDB = Hwdb.load()
JOB = Job(64, 1024, "fp16", stack="megatron-deepspeed", flash_attention=False)
SECONDS = st.floats(1e-9, 1e3)


@given(host=SECONDS, device=SECONDS, factor=st.floats(1e-3, 1e3))
def test_a_block_lasts_longer_than_either_and_shorter_than_both(
    host: float, device: float, factor: float
) -> None:
    def lasts(one: float, other: float) -> float:
        return float((max(one, other) + gaps_s(np.array([one]), np.array([other])))[0])

    found = lasts(host, device)
    assert max(host, device) <= found <= (host + device) * (1 + 1e-12)
    assert found == lasts(device, host)
    assert lasts(factor * host, factor * device) == pytest.approx(factor * found)
    assert found <= lasts(1.1 * host, device) * (1 + 1e-12)


def test_where_both_take_as_long_and_where_one_is_idle() -> None:
    host, device = np.array([2.0, 2.0, 0.0, 0.0]), np.array([2.0, 0.0, 3.0, 0.0])
    assert gaps_s(host, device) == pytest.approx([2.0 * (2 ** (1 / HANDOVER) - 1), 0.0, 0.0, 0.0])


def block_s(job: Job, sequences: int) -> float:
    """One more block of 1,024 columns, forward and backward, on one A100."""
    model = load_model("gpt3-350m")
    island = Island("one", HWDB.gpu("A100-80GB"), 1, 1, HWDB.link("NVLink3"), 0.0, 0.0)
    pricer = Pricer(Setting(model, island, job, sequences, (Layout(),), HWDB))
    few, more = (pricer.price(1, stop) for stop in (9, 17))
    return float((more.forward_s + more.backward_s - few.forward_s - few.backward_s)[0]) / 8


def test_published_blocks_between_host_and_device() -> None:
    """vTrain's 1,080 steps: 3.00, 3.16, 4.94 and 8.00 ms a block at 1, 2, 4 and 8 sequences (docs)."""
    measured = np.array([3.00, 3.16, 4.94, 8.00]) * 1e-3
    found = np.array([block_s(JOB, sequences) for sequences in (1, 2, 4, 8)])
    assert np.abs(found / measured - 1).max() < 0.2


def test_captured_blocks_cost_the_host_one_launch() -> None:
    """Small blocks then last as long as their kernels, large ones hardly less than before."""
    captured = replace(JOB, cuda_graphs=True)
    small, large = (block_s(captured, n) / block_s(JOB, n) for n in (1, 32))
    assert small < 0.7 and 0.99 < large <= 1.0
