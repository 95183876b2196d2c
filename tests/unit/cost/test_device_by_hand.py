"""Rates of a device of round figures, and kernels on it."""

from dataclasses import replace

import numpy as np
import pytest

from tangram_sim.clusters import Gpu
from tangram_sim.cost.device import Rates, capacities, device_rates
from tangram_sim.cost.kernels import fused_attention_s, gemm_s
from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.hwdb.tables import Row
from tangram_sim.precision import NumberTypes
from tests.neutral import neutral_hwdb

ROWS = {
    ("fp8", "gemm", "efficiency"): 0.5,
    ("bf16", "attention", "efficiency"): 0.25,
    ("bf16", "attention", "share"): 0.5,
    ("bf16", "attention", "exponent_columns"): 8,
    ("*", "attention", "fused"): 1,
    ("*", "memory", "efficiency"): 0.5,
    ("*", "memory", "usable"): 0.75,
    ("*", "memory", "reserved_bytes"): 100,
    ("*", "launch", "seconds"): 0.25,
    ("*", "dispatch", "seconds"): 0.125,
    ("*", "stack", "time_scale"): 2,
    ("*", "stack", "attention_scale"): 4,
    ("*", "stack", "memory_workspace_bytes"): 50,
}
TYPES = NumberTypes("fp8", "fp8", "bf16")


def known(rows: dict[tuple[str, str, str], float]) -> Hwdb:
    return neutral_hwdb().with_efficiency(
        [
            Row(
                "efficiency",
                f"A100-SXM4-80GB/{dtype}/{kernel}/generic/{parameter}",
                {"gpu": "A100-SXM4-80GB", "dtype": dtype, "kernel": kernel, "stack": "generic"}
                | {"parameter": parameter, "value": repr(value), "sigma": "0", "source": "by hand"},
            )
            for (dtype, kernel, parameter), value in rows.items()
        ]
    )


def device(**peaks: float) -> Gpu:
    """1,000 bytes of memory at 400 a second."""
    gpu = neutral_hwdb().gpu("A100-SXM4-80GB")
    return replace(gpu, peaks=tuple(peaks.items()), memory_bytes=1000.0, memory_bytes_per_s=400.0)


def test_rates_are_peaks_times_what_is_reached_over_what_a_stack_takes_longer() -> None:
    found = device_rates(device(fp8=2000.0, bf16=1000.0), TYPES, known(ROWS))
    assert found.gemm_flop_per_s == 2000 * 0.5 / 2
    assert found.attention_flop_per_s == 1000 * 0.25 * 0.5 / (2 * 4)
    assert found.memory_bytes_per_s == 400 * 0.5 / 2
    assert (found.launch_s, found.dispatch_s, found.exponent_columns) == (0.5, 0.125, 8)
    assert found.fused_attention
    assert not device_rates(
        device(fp8=2000.0, bf16=1000.0), TYPES, known(ROWS | {("*", "attention", "fused"): 0.0})
    ).fused_attention


def test_a_plan_may_fill_what_the_driver_hands_out_less_what_is_kept_back() -> None:
    hwdb, gpu = known(ROWS), device(fp8=1.0, bf16=1.0)
    assert capacities(gpu, hwdb.efficiency(gpu, "fp8")) == (750, 600)
    assert device_rates(gpu, TYPES, hwdb).usable_memory_bytes == 600


@pytest.mark.parametrize("peaks", [{"bf16": 1.0}, {"fp8": 1.0}])
def test_units_for_products_and_for_vectors_are_both_needed(peaks: dict[str, float]) -> None:
    """One operation a second is a rate; none is no unit."""
    assert device_rates(device(fp8=1.0, bf16=1.0), TYPES, known(ROWS)).gemm_flop_per_s == 0.25
    with pytest.raises(InfeasibleError, match="no fp8 units"):
        device_rates(device(**peaks), TYPES, known(ROWS))


RATES = Rates(1e3, 10.0, 8.0, 100.0, 3.0, 0.0, True, 0.0, 1.0, 1.0, True)


def test_equal_products_in_one_kernel_move_all_of_their_matrices() -> None:
    """(5 x 2 + 2 x 10) x 2 bytes in and 5 x 10 x 4 out, four times, at 100 bytes/s: 10.4 s and a launch."""
    assert gemm_s(5, 10, 2, RATES, operand_bytes=2.0, output_bytes=4.0, count=4.0) == pytest.approx(13.4)
    busy = replace(RATES, gemm_flop_per_s=20.0)  # 2 x 100 x 4 operations: 40 s
    assert gemm_s(5, 10, 2, busy, operand_bytes=2.0, output_bytes=4.0, count=4.0) == pytest.approx(43.0)


def test_fused_attention_adds_up_products_exponentials_and_memory() -> None:
    """Heads of 40 columns take 64; 2 x 5 scores x (64 + 32 + 16) columns at 10 a second, 500 bytes."""
    found = fused_attention_s(np.array(5.0), 40, 32, 500.0, RATES)
    assert float(found) == pytest.approx(3 + 112 + 5)
