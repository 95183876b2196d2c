"""A parallelizer of your own: a class with two methods, found by entry point and held to a contract.

A package registers it in its pyproject.toml,

    [project.entry-points."tangram_sim.parallelizers"]
    megatron-like = "megatron_like:MegatronLike"

and then `tangram plan MODEL CLUSTER --parallelizer megatron-like` finds it. Below, a folder on
sys.path stands for the installed package.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import tangram_sim as ts
from tangram_sim.planners.api import SearchOptions

PLUGIN = '''
from tangram_sim.errors import InfeasibleError
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.api import Answer, Parallelizer, Rejection
from tangram_sim.parallelizers.grid import Grid


class MegatronLike(Parallelizer):
    """Tensor parallel inside a node, data parallel across nodes: one layout, no search."""

    name = "megatron-like"

    def __init__(self):
        self.simulator = Grid()  # prices any layout by playing the slice

    def parallelize(self, request):
        tp = request.island.gpus_per_node
        layout = Layout(tp=tp, dp=request.island.gpus // tp, sequence_parallel=tp > 1)
        try:
            found = self.price(request, layout)
        except InfeasibleError as error:
            return Answer((), (Rejection(layout, str(error)),), 1, 0)
        if found.stages_behind < 0:
            stage = found.stages[0]
            return Answer((), (Rejection(layout, "memory", stage.peak_bytes(1), stage.capacity_bytes),), 1, 0)
        return Answer((found,), (), 1, 0)

    def price(self, request, layout):
        return self.simulator.price(request, layout)
'''
METADATA = "Metadata-Version: 2.1\nName: megatron-like\nVersion: 1.0\n"
ENTRY_POINTS = "[tangram_sim.parallelizers]\nmegatron-like = megatron_like:MegatronLike\n"

with TemporaryDirectory() as folder:
    info = Path(folder) / "megatron_like-1.0.dist-info"
    info.mkdir()
    (Path(folder) / "megatron_like.py").write_text(PLUGIN)
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    sys.path.insert(0, folder)

    model, cluster = ts.load_model("gpt3-2.7b"), ts.load_cluster("azure-c1-t4x8-v100x8")
    for name in ("grid", "megatron-like"):
        found = ts.plan(
            model, cluster, ts.Job(global_batch=64), wishes=SearchOptions(parallelizer=name)
        ).document
        layouts = ", ".join(f"{stage.gpus} x {stage.gpu} tp{stage.tp}" for stage in found.stages)
        print(f"{name}: {found.step_s:.1f} s a step; {layouts}")
