"""What fuzzing starts from: small files, most of them those that documentation pages show, and commands."""

import re
from pathlib import Path

from tests.commands import files, tangram
from tests.places import ROOT

PAGES = ROOT / "docs" / "how-to"
_BLOCK = re.compile(r"^```\w+ file=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHOWN = (
    "add-a-cluster",
    "add-a-gpu",
    "add-a-model",
    "buy-gpus",
    "calibrate-with-your-runs",
    "check-a-service",
    "choose-a-checkpoint-period",
    "find-slow-ranks",
    "plan-a-service",
    "plan-on-spot",
    "simulate-a-service",
)

# Files that have a name which another page gives to something else.
_RENAMED = {
    ("check-a-service", "mine.csv"): "served.csv",
    ("plan-on-spot", "prices.yaml"): "spot-prices.yaml",
}

NCCL_LOG = """\
# nThread 1 nGpus 2 minBytes 1048576 maxBytes 16777216 step: 4(factor) warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid 100 on node0 device  0 [0x07] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 100 on node0 device  1 [0x08] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    45.10   23.25   40.69      0    44.80   23.41   40.96
     4194304       1048576     float     sum      -1    70.20   59.75  104.56      0    69.90   60.00  105.01
    16777216       4194304     float     sum      -1   190.50   88.07  154.12      0   189.70   88.44  154.77
    67108864      16777216     float     sum      -1   620.00  108.24  108.24      0   618.00  108.59  108.59
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 99.9
"""
PASSES = """\
step,dp,stage,op,seq,start_us,dur_us
0,0,0,F,0,0,10
0,0,0,B,0,30,20
0,0,1,F,0,10,10
0,0,1,B,0,20,10
"""

STEPS_LOG = """\
[INFO] [timer.py:260:stop] epoch=0/micro_step=1/global_step=1, CurrSamplesPerSec=60.0, MemAllocated=4.3GB
[INFO] [timer.py:260:stop] epoch=0/micro_step=2/global_step=2, CurrSamplesPerSec=400.1, MemAllocated=4.3GB
"""

# Files are those of `write`; every command ends in less than a second on a warm interpreter.
COMMANDS = (
    "plan tiny.yaml one.yaml --global-batch 8 --seq 256 --effort quick -o out.json",
    "plan my-llama/config.json one.yaml --global-batch 8 --seq 256 --effort quick --fix pp=2 --json",
    "estimate tiny.yaml lab.yaml --pp 3 --global-batch 8 --seq 256 -o out.json",
    "estimate tiny.yaml future.yaml --pp 2 --global-batch 8 --seq 256 --hwdb my-rows --json",
    "compare tiny.yaml one.yaml --planners uniform --global-batch 8 --seq 256",
    "simulate plan.json --slow slow.yaml --engine fast",
    "simulate plan.json --json --hwdb my-rows",
    "explain plan.json --lost n0",
    "explain plan.json --json",
    "export plan.json --to rankmap -o exported",
    "export uniform.json --to deepspeed --json",
    "export uniform.json --to megatron",
    "goodput plan.json --failures failures.yaml --checkpoint checkpoint.yaml --sample 100 --days 2",
    "goodput --mtbf-s 11000 --checkpoint-s 30 --downtime-s 60 --recovery-s 300 --json",
    "stragglers passes.csv --pp 2 --json",
    "train replay my-model trace.csv --speeds speeds.csv --restart-s 90 --migrate-s 25 --price 0.92",
    "what-if tiny.yaml one.yaml --global-batch 8 --seq 256 --tokens 1e10 --add T4x4.yaml:1 --prices "
    "prices.yaml --fleet owned --no-cache --jobs 1 --effort quick",
    "purchase tiny.yaml one.yaml --global-batch 8 --seq 256 --tokens 1e10 --catalogue catalogue.yaml "
    "--prices prices.yaml --fleet owned --budget 50000 --no-cache --jobs 1 --effort quick",
    "islands lab-mix.yaml --json",
    "islands rails.yaml",
    "cluster from-slurm sinfo.txt",
    "cluster from-nvidia-smi node1.xml node1.topo",
    "models template my-llama/config.json",
    "hw list --hwdb my-rows",
    "hw show X900-64GB --hwdb my-rows",
    "hw add-gpu X901 --bf16-tflops 800 --memory-gb 64 --memory-gb-per-s 4000 --link NVLink4 -o my-rows",
    "hw parameters --hwdb my-rows --json",
    "hw topology lab-mix.yaml",
    "collectives plan lab.yaml --op all_reduce --bytes 1048576",
    "models show moe-demo.yaml",
    "models show my-llama/config.json --json",
    "trace generate --nodes 4 --losses-per-node-hour 0.3 --hours 2 --seed 1",
    "trace describe trace.csv --json",
    "validate published mine.csv --json",
    "calibrate run mine.csv -o calibrated",
    "calibrate run plan.json --step-s 0.02 -o calibrated",
    "calibrate run steps.log --plan plan.json --json",
    "calibrate collectives nccl.log --gpu H100-SXM5-80GB --link NVLink4 --op all_reduce",
    "serve plan problem.json --json",
    "serve estimate my-llama/config.json --gpu L40S --concurrency 4 --isl 128 --osl 16",
    "serve simulate fleet.yaml --rate 4 --isl 80 --osl 15 --requests 50 --slo ttft=1,tpot=0.03",
    "serve validate served.csv --json",
    "serve calibrate result.json --gpu H100 -o served",
    "serve workload describe requests.csv --json",
)


def write(folder: Path) -> tuple[str, ...]:
    """Write the files that commands name into `folder`; their names."""
    files(folder)
    for page in _SHOWN:
        for name, text in _BLOCK.findall((PAGES / f"{page}.md").read_text()):
            place = folder / _RENAMED.get((page, name), {"lab.yaml": "lab-mix.yaml"}.get(name, name))
            place.parent.mkdir(parents=True, exist_ok=True)
            # Each row of one's own costs half a second to fit; one is enough to damage.
            place.write_text(text if place.name != "mine.csv" else "\n".join(text.split("\n")[:2]) + "\n")
    (folder / "nccl.log").write_text(NCCL_LOG)
    (folder / "steps.log").write_text(STEPS_LOG)
    (folder / "passes.csv").write_text(PASSES)
    (folder / "requests.csv").write_text(
        "arrival_s,input_tokens,output_tokens\n0,100,10\n0.5,80,20\n2,60,5\n"
    )
    (folder / "one.yaml").write_text(
        "nodes: [{count: 1, gpu: T4, gpus: 4, intra_link: PCIe3x16, nic_gbps: 25}]"
    )
    for cluster, stages, plan in (("lab", 3, "plan"), ("one", 2, "uniform")):
        asked = ("estimate", folder / "tiny.yaml", folder / f"{cluster}.yaml", "--pp", stages)
        made = tangram(*asked, "--global-batch", 8, "--seq", 256, "-o", folder / f"{plan}.json")
        assert made.code == 0, made.err
    return tuple(str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file())
