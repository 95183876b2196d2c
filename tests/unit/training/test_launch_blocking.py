"""Launches that the device waits for: CUDA_LAUNCH_BLOCKING, or timers that synchronise around every pass."""

from dataclasses import replace

import numpy as np
import pytest

from tangram_sim import Job, load_model
from tangram_sim.clusters import Island
from tangram_sim.hwdb import Hwdb
from tangram_sim.layers.products import KERNELS_FORWARD
from tangram_sim.layouts import Layout
from tangram_sim.training.stage.block import KERNELS_BACKWARD
from tangram_sim.training.stage.launching import WAITING
from tangram_sim.training.stage.pricing import Pricer
from tangram_sim.training.stage.setting import Setting

HWDB = Hwdb.load()
MODEL = load_model("gpt3-1.3b")
JOB = Job(128, 2048, "bf16", stack="megatron-deepspeed")


def seconds(job: Job, sequences: int, tp: int = 1) -> float:
    """One block forward and backward on one GPU, or on `tp`."""
    island = Island("one", HWDB.gpu("A100-80GB"), 1, tp, HWDB.link("NVLink3"), 0.0, 0.0)
    setting = Setting(MODEL, island, job, sequences, (Layout(tp=tp),), HWDB)
    prices = Pricer(setting).price(1, 2)
    return float(prices.forward_s[0] + prices.backward_s[0])


@pytest.mark.parametrize("tp", [1, 4])
def test_the_time_of_the_host_is_added_where_the_device_is_the_slower(tp: int) -> None:
    dispatch_s = HWDB.efficiency(HWDB.gpu("A100-80GB"), "bf16", JOB.stack).dispatch_s_per_kernel.value
    blocking = replace(JOB, launch_blocking=True)
    added = np.array([seconds(blocking, n, tp) - seconds(JOB, n, tp) for n in (8, 64, 128)])
    # Four hosts wait for each other a little.
    whole = (KERNELS_FORWARD + KERNELS_BACKWARD) * dispatch_s * (1 + WAITING * (tp**2 - 1) / 63)
    # A device that need not wait has gaps, the fewer the busier it is.
    assert added[1:] == pytest.approx(whole, rel=1e-3) and 0.9 * whole < added[0] < added[1] < added[2]


def test_larger_microbatches_gain_by_it() -> None:
    """Two sequences at once are launched once."""
    blocking = replace(JOB, launch_blocking=True)
    lone, pair = seconds(blocking, 8), seconds(blocking, 16)
    assert pair / (2 * lone) < seconds(JOB, 16) / (2 * seconds(JOB, 8))
