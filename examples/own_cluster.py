"""Your own machines as YAML: groups of equal nodes, and a network between them slower than the NICs."""

from pathlib import Path
from tempfile import TemporaryDirectory

import tangram_sim as ts

LAB = """\
name: lab
nodes:
  - {count: 1, gpu: A100-SXM4-80GB, gpus: 8, intra_link: NVLink3, nic_gbps: 200}
  - {count: 2, gpu: V100-PCIe-32GB, gpus: 4, intra_link: PCIe3x16, nic_gbps: 25}
network:
  between: [{groups: [0, 1], gbps: 10, latency_us: 50}]
"""

with TemporaryDirectory() as folder:
    path = Path(folder) / "lab.yaml"
    path.write_text(LAB)
    cluster = ts.load_cluster(str(path))

print(f"{cluster.name}: {cluster.gpus} GPUs in groups {', '.join(group.name for group in cluster.groups)}")
# V100s have no bf16 units, so `auto` settles on fp16.
document = ts.plan(ts.load_model("llama2-13b"), cluster, ts.Job(global_batch=64)).document
print(f"{document.job.dtype}: {document.tokens_per_s:,.0f} tokens/s, MFU {document.mfu:.0%}")
for stage in document.stages:
    print(f"{stage.island}: blocks {stage.layers[0]}-{stage.layers[1] - 1} on {stage.gpus} x {stage.gpu}")
