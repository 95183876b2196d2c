"""galvatron-uniform: one strategy for all layers, experts fully sharded where that pays.

The search that the public MoE cost model of Tangram's first author does for one slice: pp, dp, tp, ep, the
kind of data parallelism, and FSEP (LAER-MoE, arXiv:2602.11686). Formulation: docs/models/parallelizers.md.
"""

from collections.abc import Iterator
from dataclasses import replace

from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.api import Request
from tangram_sim.parallelizers.layerwise import LayerWise
from tangram_sim.parallelizers.layouts import divisors, expert_degrees
from tangram_sim.training.stage.setting import Setting


class GalvatronUniform(LayerWise):
    """Uniform layouts of all degrees: TP x DP x EP x ZeRO x recomputation x FSEP."""

    name = "galvatron-uniform"
    switches = False

    def strategies(self, request: Request, gpus: int) -> Iterator[Layout]:
        """Every degree that divides; FSEP on all data-parallel ranks, for models with experts."""
        model, job = request.slice.model, request.job
        rates = Setting(model, request.island, job, request.microbatch, (), request.hwdb).rates
        recompute = ("none", "full") if rates.fused_attention else ("none", "selective", "full")
        for tp in divisors(gpus):
            dp = gpus // tp
            sharded = tp > 1 and job.seq % tp == 0 and request.constraints.sequence_parallel is not False
            spread = expert_degrees(model, dp)
            for ep in spread:
                for zero in range(4) if dp > 1 else (0,):
                    for kind in recompute:
                        plain = Layout(tp, dp, 1, ep, 1, zero, kind, sharded)
                        yield plain
                        if ep < dp and len(spread) > 1:  # with a copy of its own, an expert is whole anyway
                            yield replace(plain, fsep=True)
