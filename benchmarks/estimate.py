"""How many distinct layouts `estimate_many` and `estimate` price per CPU-second, lowering included.

llama3-70b on 64, 128, 256 and 512 H100 GPUs: every tp, pp, cp, ZeRO stage, microbatch and recomputation that
divides. `python -c "from benchmarks.estimate import many; print(many())"` runs it alone.
"""

import time
from dataclasses import replace
from itertools import product

from tangram_sim.clusters import Cluster
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.studies import api
from tangram_sim.studies.batch_estimates import Refusal
from tangram_sim.training.job import Job

GPUS = (64, 128, 256, 512)
JOB = Job(global_batch=1024, seq=4096, dtype="bf16")


def cluster_of(gpus: int, hwdb: Hwdb) -> Cluster:
    """DGX H100 nodes that hold so many GPUs."""
    four = load_cluster("h100x8-nodes4", hwdb)
    group = replace(four.groups[0], count=gpus // four.groups[0].node.gpus)
    return replace(four, name=f"h100-{gpus}", groups=(group,))


def layouts() -> list[Uniform]:
    """Distinct layouts that suit all of these clusters."""
    choices = product((1, 2, 4, 8), (1, 2, 4, 8), (1, 2), (0, 1, 3), (1, 2), ("none", "full"), (False, True))
    return [
        Uniform(
            tp=tp,
            pp=pp,
            cp=cp,
            zero_stage=zero,
            micro_batch=micro,
            recompute=recompute,
            sequence_parallel=split,
        )
        for tp, pp, cp, zero, micro, recompute, split in choices
        if tp * pp * cp <= GPUS[0] and (tp > 1 or not split)
    ]


def many() -> dict[str, float]:
    """Layouts per CPU-second of `estimate_many`, compiled code in place but nothing priced before."""
    hwdb, model, wanted = Hwdb.load(), load_model("llama3-70b"), layouts()
    clusters = [cluster_of(gpus, hwdb) for gpus in GPUS]
    api.estimate_many(load_model("gpt2"), clusters[0], JOB, [Uniform(tp=4, pp=2)], hwdb=hwdb)
    begin = time.process_time()
    found = [
        item for cluster in clusters for item in api.estimate_many(model, cluster, JOB, wanted, hwdb=hwdb)
    ]
    spent = time.process_time() - begin
    refused = sum(isinstance(item, Refusal) for item in found)
    return {"layouts": len(found), "refused": refused, "per_cpu_s": len(found) / spent}


def one_by_one() -> dict[str, float]:
    """Layouts per CPU-second of `estimate`, which writes a whole document for each."""
    hwdb, model, wanted = Hwdb.load(), load_model("llama3-70b"), layouts()[::40]
    cluster = cluster_of(GPUS[0], hwdb)
    api.estimate(load_model("gpt2"), cluster, JOB, Uniform(tp=4, pp=2), hwdb=hwdb)
    begin = time.process_time()
    for layout in wanted:
        api.estimate(model, cluster, JOB, layout, hwdb=hwdb)
    return {"layouts": len(wanted), "per_cpu_s": len(wanted) / (time.process_time() - begin)}
