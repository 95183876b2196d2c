"""An exported order of passes under torch's own pipeline runtime: it loads, runs, trains as alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tangram_sim.clusters import Cluster, Node, NodeGroup
from tangram_sim.export.formats import export
from tangram_sim.hwdb import Hwdb
from tangram_sim.layouts import Layout
from tangram_sim.models import Attention, Block, FeedForward, Model
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan, Share, pipeline_of_shares

MICROBATCHES = 4
_PROGRAM = """\
import sys
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

rank, chunks, path, meeting = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
torch.manual_seed(0)
layers = [torch.nn.Linear(8, 8) for _ in range(2 * chunks)]
inputs, target = torch.randn(4, 8), torch.randn(4, 8)
loss = torch.nn.functional.mse_loss
whole = inputs
for layer in layers:
    whole = layer(whole)
loss(whole, target).backward()
wanted = [layer.weight.grad.clone() for layer in layers]
for layer in layers:
    layer.zero_grad()
mine = range(rank, 2 * chunks, 2)
stages = [PipelineStage(layers[place], place, 2 * chunks, torch.device("cpu")) for place in mine]
schedule = _PipelineScheduleRuntime(stages, 4, loss_fn=loss)
schedule._load_csv(path)
if rank == 0:
    schedule.step(inputs)
else:
    schedule.step(target=target)
for place in mine:
    torch.testing.assert_close(layers[place].weight.grad, wanted[place])
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "chunks"), [("zb-h1", 1), ("interleaved", 2)])
def test_torchs_runtime_trains_in_the_exported_order(tmp_path: Path, schedule: str, chunks: int):
    hwdb = Hwdb.load()
    node = Node(hwdb.gpu("T4"), 2, hwdb.link("PCIe3x16"), 3e9)
    block = Block(Attention(8, 4, 64, 64), FeedForward(2048))
    model = Model("tiny", "llama", 512, 8000, (block,) * (2 * chunks), max_seq=4096)
    shares = [[Share("g0", (place,), 1, Layout())] for place in range(2)]
    whole = pipeline_of_shares(MICROBATCHES, range(2 * chunks + 1), shares, chunks)
    cluster = Cluster("lab", (NodeGroup("g0", 1, node),))
    plan = Plan(model, cluster, Job(MICROBATCHES, 1024, dtype="fp16", schedule=schedule), (whole,))
    path = tmp_path / "schedule.csv"
    path.write_text(export(plan, "torch-pipeline-csv").files[path.name])
    (tmp_path / "program.py").write_text(_PROGRAM)
    words = [str(chunks), str(path), str(tmp_path / "meeting")]
    ranks = [
        subprocess.Popen(
            [sys.executable, "program.py", str(rank), *words],
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=300)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
