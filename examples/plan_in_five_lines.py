"""The shortest use: plan a shipped model on a shipped cluster and read what was decided."""

import tangram_sim as ts

model = ts.load_model("gpt3-6.7b")
cluster = ts.load_cluster("azure-c1-t4x12-v100x4")
result = ts.plan(model, cluster)
print(f"{result.document.step_s:.1f} s a step, {result.document.gpus_used} of {cluster.gpus} GPUs")

for stage in result.document.stages:
    share = stage.peak_memory_bytes / stage.memory_capacity_bytes
    print(
        f"blocks {stage.layers[0]}-{stage.layers[1] - 1} on {stage.gpus} x {stage.gpu}: "
        f"tp {stage.tp}, dp {stage.dp}, cp {stage.cp}, {share:.0%} of the memory"
    )
