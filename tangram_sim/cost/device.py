"""Effective rates of one GPU for one set of number types, from the efficiency rows of the database."""

from dataclasses import dataclass

from tangram_sim.clusters import Gpu
from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Efficiency, Hwdb
from tangram_sim.precision import NumberTypes


@dataclass(frozen=True, slots=True)
class Rates:
    """Effective rates of one GPU: datasheet peaks times the fraction that kernels of a class achieve."""

    gemm_flop_per_s: float
    attention_flop_per_s: float
    exponent_columns: float  # head columns whose products take as long as the exponential of a score
    memory_bytes_per_s: float
    launch_s: float  # fixed cost of a kernel on the device
    dispatch_s: float  # host time to launch one kernel
    fused_attention: bool  # a flash kernel exists: scores are never stored
    usable_memory_bytes: float  # for what the allocator holds of a model
    tensor_exposed: float  # factors of the software stack on tensor- and data-parallel communication
    data_exposed: float
    measured: bool
    reserved_bytes: float = 0.0  # driver context, libraries, communication buffers: outside the allocator
    workspace_bytes: float = 0.0  # tensors the software stack keeps whatever the model
    master_bytes: float = 4.0  # per parameter in mixed precision: fp32 master copy and copies the stack makes
    fragmentation: float = 0.0  # what the allocator caches beyond activations, as a share of them


def capacities(gpu: Gpu, efficiency: Efficiency) -> tuple[float, float]:
    """(usable, planned) bytes of a GPU: what the driver provides, and what of that a plan may fill.

    The difference is the driver's context with its buffers and the memory kept by the software stack.
    """
    usable = gpu.memory_bytes * efficiency.usable_memory.value
    return usable, usable - efficiency.reserved_bytes.value - efficiency.workspace_bytes.value


def device_rates(gpu: Gpu, types: NumberTypes, hwdb: Hwdb, stack: str = "generic") -> Rates:
    """Effective rates of `gpu` for numbers of `types`.

    Raises InfeasibleError when the device has no units for the GEMM dtype: a missing dtype
    is never replaced by another one.
    """
    peak = gpu.peak_flop_per_s(types.gemm)
    vector_peak = gpu.peak_flop_per_s(types.vector)
    if peak <= 0 or vector_peak <= 0:
        have = ", ".join(dtype for dtype, _ in gpu.peaks)
        raise InfeasibleError(
            f"{gpu.name} has no {types.name} units (it has {have}); choose another `dtype=`"
        )
    efficiency = hwdb.efficiency(gpu, types.gemm, stack)
    attention = hwdb.efficiency(gpu, types.vector, stack)
    scale = efficiency.time_scale.value
    return Rates(
        gemm_flop_per_s=peak * efficiency.gemm_efficiency.value / scale,
        attention_flop_per_s=vector_peak
        * attention.attention_efficiency.value
        * attention.attention_share.value
        / (scale * efficiency.attention_scale.value),
        exponent_columns=attention.exponent_columns.value,
        memory_bytes_per_s=gpu.memory_bytes_per_s * efficiency.memory_efficiency.value / scale,
        launch_s=efficiency.kernel_launch_s.value * scale,
        dispatch_s=efficiency.dispatch_s_per_kernel.value,
        fused_attention=efficiency.fused_attention.value > 0.5,
        usable_memory_bytes=capacities(gpu, efficiency)[1],
        reserved_bytes=efficiency.reserved_bytes.value,
        workspace_bytes=efficiency.workspace_bytes.value,
        master_bytes=efficiency.master_bytes.value,
        fragmentation=efficiency.fragmentation.value,
        tensor_exposed=efficiency.tensor_exposed.value,
        data_exposed=efficiency.data_exposed.value,
        measured=gpu.measured,
    )
