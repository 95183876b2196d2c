"""What explicit uniform layouts would achieve: `estimate` plays each, also where memory does not suffice."""

import tangram_sim as ts
from tangram_sim.planners.uniform.degrees import Uniform

model, cluster = ts.load_model("llama2-7b"), ts.load_cluster("h100x8-nodes4")
job = ts.Job(global_batch=256, seq=4096)
LAYOUTS = {
    "tp8 dp4": Uniform(tp=8, sequence_parallel=True),
    "tp2 dp16": Uniform(tp=2, sequence_parallel=True, zero_stage=1),
    "pp4 dp8": Uniform(pp=4, zero_stage=1),
    "dp32 zero3": Uniform(zero_stage=3, recompute="selective"),
    "dp32": Uniform(),
}

print("layout         step    MFU    memory")
for name, layout in LAYOUTS.items():
    found = ts.estimate(model, cluster, job, layout).document
    memory = f"{found.peak_memory_bytes / 2**30:.0f} GiB" if found.feasible else "does not fit"
    print(f"{name:<12} {found.step_s:>5.2f} s  {found.mfu:>4.0%}  {memory:>8}")
