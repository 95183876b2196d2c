"""Questions to parallelizers, and the islands they are about."""

from tangram_sim.clusters import Island
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.layers.atoms import Slice
from tangram_sim.parallelizers.api import Constraints, Request
from tangram_sim.training.job import Job

HWDB = Hwdb.load()


def island(gpu="V100-SXM2-16GB", link="NVLink2", nodes=1, gpus=4) -> Island:
    return Island("i", HWDB.gpu(gpu), nodes, gpus, HWDB.link(link), 12.5e9, 10e-6)


def request(
    name="gpt3-1.3b", where=None, atoms=(0, None), microbatch=8, microbatches=8, job=None, constraints=None
) -> Request:
    model, where = load_model(name), where or island()
    start, stop = atoms
    dtype = "bf16" if where.gpu.peak_flop_per_s("bf16") else "fp16"
    return Request(
        Slice(model, start, model.layers + 2 if stop is None else stop),
        where,
        job or Job(seq=1024, dtype=dtype),
        microbatch,
        microbatches,
        HWDB,
        constraints or Constraints(),
    )


T4_SIX = island("T4", "PCIe3x16", gpus=6)

REQUESTS = {
    "tight": request(),
    "six GPUs": request(where=T4_SIX, atoms=(0, 10), microbatch=6),
    "experts, two nodes": request("mixtral-8x7b", island("A100-SXM4-80GB", "NVLink3", 2, 8), (0, 9), 16),
    "alternating experts": request("gshard-moe-2.4b", atoms=(1, 7), microbatch=4),
    "windows": request("gemma2-9b", island("H100-SXM5-80GB", "NVLink4", 1, 8), (20, None)),
    "nothing fits": request("gpt3-6.7b", island("T4", "PCIe3x16", gpus=2), microbatch=2),
    "one GPU": request(where=island(gpus=1), atoms=(3, 6), microbatch=2),
    "gpipe": request(
        "llama2-7b",
        island("A100-SXM4-40GB", "NVLink3"),
        (3, 5),
        4,
        16,
        Job(seq=2048, dtype="bf16", schedule="gpipe"),
    ),
    "zero bubble": request(atoms=(0, 4), job=Job(seq=1024, dtype="fp16", schedule="zb-h1")),
    "few atoms": request(atoms=(2, 4)),
    "user's wishes": request(
        constraints=Constraints(fixed=(("tp", 2),), recompute=("full",), sequence_parallel=True)
    ),
}
