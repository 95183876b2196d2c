"""galvatron-uniform: one strategy for all layers, with fully sharded experts where that is faster.

The search that the public MoE cost model of Tangram's first author does for one slice: pp, dp, tp, ep, the
kind of data parallelism, and FSEP (LAER-MoE, arXiv:2602.11686). Formulation: docs/models/parallelizers.md.
"""

from collections.abc import Iterator
from dataclasses import replace

from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.api import Request
from tangram_sim.parallelizers.layerwise import LayerWise, sharded_layouts


class GalvatronUniform(LayerWise):
    """One layout for all layers, over all degrees: TP x DP x EP x ZeRO x recomputation x FSEP."""

    name = "galvatron-uniform"
    switches = False

    def strategies(self, request: Request, gpus: int) -> Iterator[Layout]:
        """Layouts with every degree that divides; with experts also FSEP on all data-parallel ranks."""
        for plain, spread in sharded_layouts(request, gpus, lambda possible: possible):
            yield plain
            if plain.ep < plain.dp and len(spread) > 1:  # with a copy of its own, an expert is whole anyway
                yield replace(plain, fsep=True)
