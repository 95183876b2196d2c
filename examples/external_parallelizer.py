"""A planner that is no Python package: a program that answers questions in JSON, one per line.

The program below proposes two layouts for each question, asks the simulator what they cost, and keeps
the faster one that fits. `tangram plan MODEL CLUSTER --parallelizer external` asks whatever program the
environment variable TANGRAM_PLANNER names; here the same is done from Python.
"""

import os
import shlex
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import tangram_sim as ts
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.layers.atoms import whole
from tangram_sim.parallelizers.api import Request
from tangram_sim.parallelizers.external import External
from tangram_sim.placement.islands import find_islands

PLANNER = """
import json
import sys

for line in sys.stdin:  # one question per line
    asked = json.loads(line)
    gpus = asked["island"]["nodes"] * asked["island"]["gpus_per_node"]
    start, stop = asked["slice"]["start"], asked["slice"]["stop"]
    middle = (start + stop) // 2
    plans = [
        {"dp": gpus, "zero_stage": 3, "recompute": "full"},
        {"runs": [
            {"atoms": [start, middle], "dp": gpus, "zero_stage": 3, "recompute": "full"},
            {"atoms": [middle, stop], "dp": gpus, "zero_stage": 3},
        ]},
    ]
    print(json.dumps({"price": plans}), flush=True)
    prices = json.loads(sys.stdin.readline())["prices"]
    fit = [(price["latency_s"], number) for number, price in enumerate(prices)
           if price.get("stages_behind", -1) >= 0]
    answer = {"plans": [plans[min(fit)[1]]]} if fit else {"plans": [], "infeasible": "too large for ZeRO-3"}
    print(json.dumps(answer), flush=True)
"""

with TemporaryDirectory() as folder:
    program = Path(folder) / "their_planner.py"
    program.write_text(PLANNER)
    os.environ["TANGRAM_PLANNER"] = shlex.join([sys.executable, str(program)])

    hwdb, model = Hwdb.load(), load_model("llama2-7b")
    (island,) = find_islands(load_cluster("azure-c3-a100x4", hwdb), "bf16", hwdb=hwdb)
    planner = External()
    for microbatch in (16, 32, 256):
        job = ts.Job(global_batch=256, seq=2048, dtype="bf16")
        answer = planner.parallelize(Request(whole(model), island, job, microbatch, 256 // microbatch, hwdb))
        for partial in answer.partials:
            runs = [f"{run.stop - run.start} atoms {run.layout}" for run in partial.runs] or [
                str(partial.layout)
            ]
            print(f"microbatch {microbatch}: {partial.slowest_s:.2f} s, {' then '.join(runs)}")
        for rejection in answer.rejected:
            print(f"microbatch {microbatch}: nothing ({rejection.reason})")
