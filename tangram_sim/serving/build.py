"""A deployment from names: the model, a GPU kind, degrees, an engine, a precision."""

from dataclasses import replace
from itertools import pairwise

from tangram_sim.clusters import Island, Link
from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Experts, Model
from tangram_sim.precision import PRECISIONS, Precision
from tangram_sim.serving.deployment import Deployment, ReplicaStage, Speculation
from tangram_sim.serving.engines import EngineDefaults
from tangram_sim.units import GIGA

NODE_GPUS = 8  # GPUs of a node where nothing else is known
NIC_BYTES_PER_S = 50 * GIGA  # per GPU: one port of 400 Gb/s, as in the nodes of 2022 to 2026
NIC_LATENCY_S = 10e-6
RACKS = {"GB200": 72, "GB300": 72}  # GPUs of one NVLink domain (NVL72)


def gpu_island(name: str, ranks: int, hwdb: Hwdb) -> Island:
    """An island of `ranks` GPUs of one kind with a server's links: the kind's own, PCIe where it has none.

    Islands of more than one node consist of full nodes. Bridged pairs of PCIe cards are not assumed.
    """
    gpu = hwdb.gpu(name)
    row = hwdb.gpu_row(gpu.name)
    link = hwdb.link(row["link"])
    if link.kind in ("none", "nvlink-bridge"):
        link = _pcie(int(row.number("pcie_gen", 4)), hwdb)
    inside = min(ranks, RACKS.get(gpu.name, NODE_GPUS))
    nodes = -(-ranks // inside)
    return Island(
        name=gpu.name,
        gpu=gpu,
        nodes=nodes,
        gpus_per_node=inside,
        intra=link,
        nic_bytes_per_s=inside * NIC_BYTES_PER_S,
        nic_latency_s=NIC_LATENCY_S,
    )


def _pcie(generation: int, hwdb: Hwdb) -> Link:
    return hwdb.link(f"PCIe{min(max(generation, 3), 5)}x16")


SPELLINGS = {"fp4": "nvfp4", "bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "half": "fp16"}
FOUR_BITS = ("nvfp4", "mxfp4", "int4")
CACHES = ("bf16", "fp16", "fp32", "fp8", "int8")


def precision_of(name: str, model: Model, kv: str = "auto") -> Precision:
    """The precision of a name, as checkpoints of `model` use it; `kv` "auto": the precision's own cache type.

    Four-bit checkpoints of models with experts keep everything but the experts in 16 bits; those of gpt-oss
    are mxfp4. Raises UnknownNameError.
    """
    spelled = SPELLINGS.get(name.lower(), name.lower())
    if spelled not in PRECISIONS:
        raise unknown_name("precision", name, (*PRECISIONS, *SPELLINGS))
    if model.family == "gpt_oss" and spelled == "nvfp4":
        spelled = "mxfp4"
    found = PRECISIONS[spelled]
    sparse = any(isinstance(block.feed_forward, Experts) for block in model.blocks)
    if spelled in FOUR_BITS:
        rest, compute = ("bf16", found.vector) if sparse else (spelled, found.compute)
        found = replace(
            found,
            attention=rest,
            attention_compute=compute,
            weights=rest if sparse else spelled,
            experts=spelled,
        )
    if kv == "auto":
        return found
    if kv not in CACHES:
        raise unknown_name("type of KV cache", kv, ("auto", *CACHES))
    return replace(found, kv=kv)


def check_degrees(model: Model, tp: int, pp: int, ep: int, attention_dp: int) -> None:
    """Raise BadInputError for parallel degrees that are impossible for the model."""
    for name, value in (("tp", tp), ("pp", pp), ("ep", ep), ("attention dp", attention_dp)):
        if value < 1:
            raise BadInputError(f"{name} {value} given; a degree is 1 or more")
    if pp > model.layers:
        raise BadInputError(f"pp {pp} given; {model.name} has {model.layers} layers, at least one a stage")
    heads = min(block.attention.heads for block in model.blocks)
    if tp > heads:
        raise BadInputError(f"tp {tp} given; {model.name} has {heads} attention heads, at least one a rank")
    if any(block.attention.heads % tp for block in model.blocks):
        raise BadInputError(
            f"tp {tp} given; it must divide the {heads} attention heads of {model.name}, as engines demand"
        )
    if (tp * attention_dp) % ep:
        raise BadInputError(f"ep {ep} given; it divides tp x attention dp, {tp * attention_dp}")


def deployment_of(
    model: Model,
    gpu: str,
    hwdb: Hwdb,
    engine: EngineDefaults,
    *,
    precision: Precision,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    attention_dp: int = 1,
    speculation: Speculation | None = None,
) -> Deployment:
    """A replica of equal stages on one GPU kind. Raises BadInputError for impossible degrees."""
    check_degrees(model, tp, pp, ep, attention_dp)
    island = gpu_island(gpu, tp * attention_dp, hwdb)
    cuts = [round(model.layers * stage / pp) for stage in range(pp + 1)]
    stages = tuple(ReplicaStage(island, first, end, tp) for first, end in pairwise(cuts))
    return Deployment(model, stages, precision, engine, ep, attention_dp, speculation=speculation)
