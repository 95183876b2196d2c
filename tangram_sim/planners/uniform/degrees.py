"""Degrees of one layout for a whole model, as a user states them."""

from dataclasses import dataclass

from tangram_sim.fields import described, option
from tangram_sim.layouts import RECOMPUTE
from tangram_sim.written import name_list, whole_numbers


@described
@dataclass(frozen=True, slots=True)
class Uniform:
    """Degrees of one layout for the whole model."""

    tp: int = option(1, "Tensor-parallel degree.", basic=True)
    pp: int = option(1, "Pipeline stages.", basic=True)
    dp: int = option(0, "Data-parallel degree; 0: as many replicas as the cluster's GPUs hold.", basic=True)
    cp: int = option(1, "Context-parallel degree.")
    ep: int = option(1, "Expert-parallel degree; divides dp x cp.")
    vpp: int = option(1, "Chunks per stage; 2 or more means `schedule=interleaved`.")
    zero_stage: int = option(0, "ZeRO stage, 0 to 3.", spelled="--zero", basic=True)
    micro_batch: int = option(1, "Sequences per data-parallel rank.", unit="sequences", basic=True)
    recompute: str = option("none", "none, selective or full.", choices=RECOMPUTE, basic=True)
    sequence_parallel: bool = option(
        False,
        "Split norms over the tp ranks too.",
        spelled="--sequence-parallel/--no-sequence-parallel",
    )
    layers: tuple[int, ...] = option(
        (),
        "Blocks per stage (or per chunk, round by round), e.g. 10,10,6,6.",
        reads=whole_numbers,
        unset="even",
    )
    order: tuple[str, ...] = option(
        (), "Node groups in the order stages take them, e.g. g1,g0.", reads=name_list
    )
    stage_groups: tuple[str, ...] = option(
        (),
        "The node group of every stage, front to back, in place of `order`: any sequence, groups again and "
        "again.",
        reads=name_list,
    )
