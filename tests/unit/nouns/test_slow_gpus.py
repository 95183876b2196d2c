"""A GPU that is so many times slower."""

from hypothesis import given
from hypothesis import strategies as st

from tests.records import HWDB

FACTORS = st.sampled_from((1.0, 2.0, 4.0))


@given(FACTORS, FACTORS)
def test_all_that_a_slow_gpu_does_is_slower_and_its_memory_besides(compute: float, memory: float) -> None:
    gpu = HWDB.gpu("H100")
    slow = gpu.slowed(compute, memory)
    assert slow.memory_bytes_per_s == gpu.memory_bytes_per_s / compute / memory
    for dtype, peak in gpu.peaks:
        assert slow.peak_flop_per_s(dtype) == peak / compute
    assert slow.peak_flop_per_s("int2") == 0.0
    assert slow.memory_bytes == gpu.memory_bytes
    assert gpu.slowed(compute) == gpu.slowed(compute, 1.0)
    assert gpu.slowed(compute, memory) == gpu.slowed(compute).slowed(1.0, memory)
