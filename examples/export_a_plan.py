"""Write a plan as launch configuration, and see what a framework cannot express."""

from tangram_sim.export.formats import export
from tangram_sim.export.uniform import CannotExportError
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.layouts import Layout
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan, Share, pipeline_of_shares

hwdb = Hwdb.load()
model, cluster = load_model("gpt3-1.3b"), load_cluster("azure-c1-t4x4-v100x4", hwdb)

# Four T4 take 7 blocks, four V100 take 17: equal degrees, unequal cuts.
front, back = Share("g0", (0, 1, 2, 3), 4, Layout(dp=4)), Share("g1", (4, 5, 6, 7), 4, Layout(dp=4))
plan = Plan(model, cluster, Job(32, 2048, "fp16"), (pipeline_of_shares(8, (0, 7, 24), [[front], [back]]),))
for to in ("megatron", "deepspeed"):
    try:
        for name, text in export(plan, to).files.items():
            print(f"{to}: {name}")
            print("".join(f"  {line[:100]}\n" for line in text.splitlines()[:6]))
    except CannotExportError as error:
        print(error)
