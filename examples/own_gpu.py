"""A GPU that is not shipped, or does not exist yet, is a row in a file of a folder, as with `--hwdb DIR`.

The row says what the datasheet says. A column left out is unknown, never borrowed from another dtype.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import tangram_sim as ts
from tangram_sim.hwdb import Hwdb

GPUS = """\
name,vendor,architecture,form,year,memory_gb,memory_gb_per_s,fp32_tflops,bf16_tflops,link,link_gb_per_s,source
Dream-96GB,nvidia,Hopper,SXM,2030,96,6000,120,1500,NVLink4,450,a wish
"""
CLUSTER = """\
name: dream
nodes:
  - {count: 1, gpu: Dream-96GB, gpus: 8, intra_link: NVLink4, nic_gbps: 400}
  - {count: 1, node: DGX-H100}
"""

with TemporaryDirectory() as folder:
    (Path(folder) / "gpus.csv").write_text(GPUS)
    lab = Path(folder) / "dream.yaml"
    lab.write_text(CLUSTER)

    hwdb = Hwdb.load([Path(folder)])
    cluster = ts.load_cluster(str(lab), hwdb)
    result = ts.plan(ts.load_model("llama2-13b"), cluster, ts.Job(global_batch=64, seq=4096), hwdb=hwdb)

for stage in result.document.stages:
    first, last = stage.layers[0], stage.layers[1] - 1
    print(f"{stage.gpus} x {stage.gpu}: blocks {first}-{last}, {stage.forward_s * 1e3:.0f} ms forward")
