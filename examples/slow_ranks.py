"""A slow GPU under a plan: what it costs, what moving layers brings, and sharing columns by speed."""

import tangram_sim as ts
from tangram_sim.health import Resizing, Slowdown
from tangram_sim.hwdb import Hwdb
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.studies.resizing import resized
from tangram_sim.studies.slowness import play_slow, slow_plan

hwdb = Hwdb.load()
model, cluster = ts.load_model("gpt3-1.3b"), ts.load_cluster("azure-c1-t4x4-v100x4", hwdb)
plan = ts.estimate(
    model, cluster, ts.Job(global_batch=32), Uniform(tp=2, pp=2, layers=(7, 17)), hwdb=hwdb
).forecast.plan
slow = [Slowdown("n0.1", 1.5)]
healthy, hurt = (play_slow(plan, some, hwdb).step_s for some in ((), slow))
print(f"healthy {healthy:.2f} s a step, with GPU n0.1 1.5 times slower {hurt:.2f} s")

for layers in ((6, 18), (5, 19), (4, 20)):
    moved = ts.estimate(
        model, cluster, ts.Job(global_batch=32), Uniform(tp=2, pp=2, layers=layers), hwdb=hwdb
    ).forecast.plan
    step_s = play_slow(moved, slow, hwdb).step_s
    print(f"layers {layers[0]} and {layers[1]} instead of 7 and 17: {step_s:.2f} s")

for most in (0.0, 0.1):
    _, groups = resized(slow_plan(plan, slow), Resizing(max_pruned=most), hwdb)
    step_s = play_slow(plan, slow, hwdb, resizing=Resizing(max_pruned=most)).step_s
    words = ", ".join(
        f"ranks {group.ranks} {group.after:.2f} times slower, {group.shares.pruned_share:.1%} pruned"
        for group in groups
    )
    print(f"columns by speed, {most:.0%} pruned at most: {step_s:.2f} s ({words or 'nothing gained'})")
