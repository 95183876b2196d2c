"""Groups of identical replicas, as launch files need them, read from a fleet file or a serving plan."""

from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

from tangram_sim.clusters import Gpu
from tangram_sim.datafiles import read_json_or_yaml
from tangram_sim.errors import BadInputError
from tangram_sim.export.uniform import CannotExportError
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.serving.engines import engine_defaults
from tangram_sim.serving.fleet_schema import FleetIn, ReplicaIn
from tangram_sim.serving.forward import vector_type

_TOKENS = 1024  # context lengths are multiples of it


@dataclass(frozen=True, slots=True)
class ServedGroup:
    """`count` identical replicas with their engine's limits.

    `stages` are (GPU kind, tensor-parallel degree, layers).
    """

    name: str
    model: str
    count: int
    stages: tuple[tuple[str, int, int], ...]
    precision: str
    kv_precision: str
    seats: int
    budget_tokens: int
    memory_fraction: float
    context_tokens: int = 0  # the longest request that is let in; 0: what the checkpoint was made for
    expert_parallel: bool = False  # experts spread over all ranks of a stage
    role: str = "both"  # or prefill, decode
    attention_dp: int = 1  # groups of tp ranks with requests of their own; seats and budget are of one group
    draft_tokens: int = 0  # speculative, checked in one iteration

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return sum(tp for _, tp, _ in self.stages) * self.attention_dp

    @property
    def kinds(self) -> tuple[str, ...]:
        """Its kinds of GPU, in the order of the stages."""
        return tuple(dict.fromkeys(kind for kind, _, _ in self.stages))

    @property
    def tp(self) -> int:
        """The tensor-parallel degree of all stages. Raises CannotExportError where they differ."""
        degrees = {tp for _, tp, _ in self.stages}
        if len(degrees) > 1:
            raise CannotExportError(
                f"{self.name}: stages have tensor-parallel degrees {', '.join(map(str, sorted(degrees)))}; "
                "vLLM, SGLang and TensorRT-LLM start all stages with one"
            )
        return degrees.pop()

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of every stage."""
        return tuple(layers for _, _, layers in self.stages)


@dataclass(frozen=True, slots=True)
class ServiceLaunch:
    """The replicas to start, and the shares of requests that the router sends to each group.

    `shares` is by group, then by request type.
    """

    engine: str  # to be launched
    planned_for: str
    groups: tuple[ServedGroup, ...]
    shares: tuple[tuple[float, ...], ...]
    types: tuple[tuple[float, float, str], ...]  # prompt tokens, output tokens, model
    notes: tuple[str, ...] = ()


def load_service(path: Path, hwdb: Hwdb, engine: str = "") -> ServiceLaunch:
    """The service in a fleet file or plan, for `engine` (empty: the one that it was planned for).

    Raises BadInputError, CannotExportError.
    """
    data = read_json_or_yaml(path)
    if isinstance(data, dict) and "status" in data and not isinstance(data.get("fleet"), dict):
        raise BadInputError(
            f"{path}: a plan without a fleet: only plans of models, not of given throughputs, can be launched"
        )
    if isinstance(data, dict) and isinstance(data.get("fleet"), dict):
        data = data["fleet"]
    return service_of(data, hwdb, engine, str(path))


def service_of(data: Any, hwdb: Hwdb, engine: str = "", source: str = "fleet") -> ServiceLaunch:
    """The service in a mapping with the keys of a fleet file. Raises BadInputError, CannotExportError."""
    given = FleetIn.read(data, source)
    planned_for = given.engine
    given = given.with_fields(engine=engine or planned_for)
    groups = tuple(
        _group(replica, place, given, hwdb, source) for place, replica in enumerate(given.replicas)
    )
    width = max(1, len(given.types))
    shares = tuple(tuple(replica.shares or (float(replica.count),) * width) for replica in given.replicas)
    types = tuple((item[0], item[1], item[2] if len(item) > 2 else "") for item in given.types)
    notes = tuple(
        f"{group.name}: started in {group.precision}: {', '.join(group.kinds)} cannot compute in "
        f"{replica.precision or given.precision}, and the plan was priced so"
        for group, replica in zip(groups, given.replicas, strict=True)
        if group.precision != (replica.precision or given.precision)
    )
    notes += tuple(
        f"{group.name}: its KV cache is in 16 bits, not fp8 as planned: {', '.join(group.kinds)} would serve "
        "an fp8 cache with slower attention kernels; half as many tokens fit"
        for group, replica in zip(groups, given.replicas, strict=True)
        if group.kv_precision != (replica.kv_precision or given.kv_precision)
    )
    return ServiceLaunch(given.engine, planned_for, groups, shares, types, notes)


def _group(replica: ReplicaIn, place: int, given: FleetIn, hwdb: Hwdb, source: str) -> ServedGroup:
    name = replica.name or f"replica {place}"
    model = replica.model or given.model
    if model is None:
        raise BadInputError(f"{source}: `model` is missing; an engine must be told what to serve")
    widest = max(stage.tp for stage in replica.stages) if replica.stages else replica.tp
    ranks, spread = (
        widest * replica.attention_dp,
        f"{replica.attention_dp} groups of attention data parallelism",
    )
    undrafted = replica.drafts_refused(given.engine)
    for words, wrong in (
        ("costs of its own, which no engine can be started from", replica.costs is not None),
        (
            f"{spread}, which trtllm-serve takes from a file alone (enable_attention_dp)",
            replica.attention_dp > 1 and given.engine == "trtllm",
        ),
        (
            f"{spread} in several stages",
            replica.attention_dp > 1 and (replica.pp > 1 or replica.stages is not None),
        ),
        (f"draft tokens, which {undrafted}", bool(replica.drafts and undrafted)),
        (
            f"experts over {replica.ep} of {ranks} ranks; vLLM spreads them over all",
            1 < replica.ep != ranks,
        ),
    ):
        if wrong:
            raise CannotExportError(f"{source}: {name} has {words}; launch it by hand")
    kind = replica.stages[0].gpu if replica.stages else replica.gpu or ""
    engine = engine_defaults(hwdb, given.engine, hwdb.gpu(kind), given.engine_version)
    if replica.stages:
        stages = tuple((hwdb.gpu(stage.gpu).name, stage.tp, stage.layers) for stage in replica.stages)
    else:
        layers = load_model(model).layers
        cuts = [round(layers * stage / replica.pp) for stage in range(replica.pp + 1)]
        stages = tuple((hwdb.gpu(kind).name, replica.tp, end - first) for first, end in pairwise(cuts))
    given = given.with_fields(
        precision=replica.precision or given.precision,
        kv_precision=replica.kv_precision or given.kv_precision,
    )
    kv_precision = _cache_precision(given, [hwdb.gpu(gpu) for gpu, _, _ in stages], f"{source}: {name}")
    seats = replica.max_sequences or replica.planned_sequences
    # Engines refuse bf16 on GPUs without it; fp16 is what the plan priced there.
    types = {vector_type(hwdb.gpu(gpu), given.precision) for gpu, _, _ in stages}
    return ServedGroup(
        name=name,
        model=model,
        count=replica.count,
        stages=stages,
        precision="fp16" if "fp16" in types else given.precision,
        kv_precision=kv_precision,
        # Limits of a fleet file are those of the whole replica, an engine's own those of each group.
        seats=min(ceil(seats / replica.attention_dp), replica.max_sequences or engine.max_sequences)
        if seats
        else engine.max_sequences,
        budget_tokens=ceil((replica.max_batched_tokens or 0) / replica.attention_dp)
        or engine.max_batched_tokens,
        memory_fraction=replica.memory_fraction or engine.memory_fraction,
        context_tokens=_context_tokens(model, given),
        expert_parallel=replica.ep > 1,
        role=replica.role,
        attention_dp=replica.attention_dp,
        draft_tokens=replica.drafts,
    )


def _cache_precision(given: FleetIn, gpus: list[Gpu], where: str) -> str:
    """The precision of the KV cache. Raises CannotExportError if fp8 is stated for GPUs without fp8.

    On such GPUs (before Ada and Hopper) an engine with an fp8 cache cannot use the attention kernels that the
    plan was priced with.
    """
    eight = given.kv_precision == "fp8" or (given.kv_precision == "auto" and given.precision == "fp8")
    lacking = sorted({gpu.name for gpu in gpus if not gpu.peak_flop_per_s("fp8")})
    if not eight or not lacking:
        return given.kv_precision
    if given.kv_precision == "fp8":
        raise CannotExportError(
            f"{where}: a KV cache in fp8 on {', '.join(lacking)}, whose attention kernels for it are not "
            "those of the plan; plan it with a cache of 16 bits"
        )
    return "bf16"


def _context_tokens(model: str, given: FleetIn) -> int:
    """Twice the tokens of the longest request type, rounded up to 1,024, at most the model's; 0: no types."""
    own = [item for item in given.types if len(item) < 3 or item[2] == model]
    longest = max((item[0] + item[1] for item in own), default=0.0)
    if not longest:
        return 0
    wanted = ceil(2 * longest / _TOKENS) * _TOKENS
    most = load_model(model).max_seq
    return min(wanted, most) if most else wanted
