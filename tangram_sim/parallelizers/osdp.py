"""OSDP: data parallelism in which each operator is replicated or sharded, and sharded ones may be split.

Jiang et al., "OSDP: Optimal Sharded Data Parallel for Distributed Deep Learning", arXiv:2209.13258. An
operator here is an atom (a block; the ends belong to their neighbours), the unit that a plan can name.
Formulation: docs/models/parallelizers.md.
"""

from collections.abc import Iterator

from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.api import Request
from tangram_sim.parallelizers.layerwise import LayerWise

SLICES = (1, 2, 4, 8)  # pieces in which a sharded operator may be gathered


class OSDP(LayerWise):
    """OSDP: layers replicated (DP) or sharded (ZDP, ZeRO-3); equal layers use at most two strategies."""

    name = "osdp"

    def strategies(self, request: Request, gpus: int) -> Iterator[Layout]:  # noqa: ARG002 - interface
        """Yields DP, and ZDP in 1 to 8 slices, each with and without recomputation."""
        for recompute in ("none", "full"):
            yield Layout(dp=gpus, recompute=recompute)
            if gpus > 1:
                for slices in SLICES:
                    yield Layout(dp=gpus, zero_stage=3, recompute=recompute, slices=slices)

    def depths(self, request: Request) -> tuple[int, ...]:  # noqa: ARG002 - interface
        """No pipeline: OSDP is data parallelism."""
        return (1,)


class OSDPExact(OSDP):
    """OSDP with the exact program over layers: slower, for single slices and small clusters."""

    name = "osdp-exact"
    exact = True
