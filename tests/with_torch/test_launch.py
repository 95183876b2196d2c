"""A launch script under the real torchrun: unequal agents give every rank the GPU asked for."""

import os
import subprocess
import sys
from pathlib import Path

from tangram_sim.clusters import Cluster, Node, NodeGroup
from tangram_sim.export import launch
from tangram_sim.hwdb import Hwdb

_PROGRAM = """\
import os, sys
gpus = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
place = (os.environ["RANK"], os.environ["WORLD_SIZE"], gpus[int(os.environ["LOCAL_RANK"])])
open(os.path.join(sys.argv[1], os.environ["RANK"]), "w").write(" ".join(place))
"""


def test_ranks_get_their_gpus(tmp_path):
    hwdb = Hwdb.load()
    node = Node(hwdb.gpu("T4"), 3, hwdb.link("PCIe3x16"), 3e9)
    cluster, ranks = Cluster("lab", (NodeGroup("g0", 2, node),)), (1, 0, 5, 2)
    (tmp_path / "program.py").write_text(_PROGRAM)
    (tmp_path / "launch.sh").write_text(launch.write(ranks, cluster, "test"))
    (tmp_path / "said").mkdir()
    torchrun = tmp_path / "torchrun"
    torchrun.write_text(f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n')
    torchrun.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(29000 + os.getpid() % 900),
        "OMP_NUM_THREADS": "1",
        "SKIP_GPU_CHECK": "1",  # no GPU is here; the check has a test of its own
    }
    agents = launch.agents_of(ranks, cluster)
    assert [len(agent.local_gpus) for agent in agents] == [2, 1, 1]
    started = [
        subprocess.Popen(
            ["sh", "launch.sh", str(number), "program.py", "said"],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(len(agents))
    ]
    for process in started:
        _, complaints = process.communicate(timeout=180)
        assert process.returncode == 0, complaints
    said = {path.name: path.read_text() for path in Path(tmp_path / "said").iterdir()}
    assert said == {str(rank): f"{rank} 4 {gpu % 3}" for rank, gpu in enumerate(ranks)}
