"""The question about one replica of a service: its settings and its load."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tangram_sim.fields import SOFTWARE, about, described, fact, option, stated
from tangram_sim.units import read_watts


def _models() -> Iterable[str]:
    """Every shipped model."""
    from tangram_sim.hwdb import model_names

    return model_names()


def _gpus() -> Iterable[str]:
    """Every GPU kind of the shipped tables."""
    from tangram_sim.hwdb import Hwdb

    return Hwdb.load().gpu_names()


@described
@dataclass(frozen=True)
class ReplicaQuestion:
    """One replica and its load; lengths in tokens. `rate` 0.0 means a closed loop of `concurrency`."""

    model: str = field(
        metadata=about(
            "A shipped name (`tangram models list`), a config.json, a model.yaml or a plan.",
            positional="MODEL",
            suggested=_models,
        )
    )
    gpu: str = field(
        metadata=about("GPU kind (`tangram hw list`).", label="GPU", suggested=_gpus, basic=True)
    )
    tp: int = option(1, "Tensor-parallel degree.", label="tp", least=1, basic=True)
    pp: int = option(1, "Pipeline stages.", label="pp", least=1, basic=True)
    ep: int = option(1, "Ranks over which routed experts are spread.", label="ep", least=1)
    attention_dp: int = option(1, "Groups of tp ranks with requests of their own.", least=1)
    engine: str = option("vllm", "vllm, sglang or trtllm.", label="Engine", group=SOFTWARE, basic=True)
    version: str = option(
        "",
        "Version of the engine, like 0.19.0.",
        spelled="--engine-version",
        unset="any",
        group=SOFTWARE,
    )
    precision: str = option(
        "bf16",
        "bf16, fp16, fp8, int8, fp4 (nvfp4, mxfp4), int4 or fp32.",
        label="Weights",
        group=SOFTWARE,
        basic=True,
    )
    kv_dtype: str = option(
        "auto",
        "Number format of the KV cache: auto, bf16, fp16, fp8, int8 or fp32.",
        group=SOFTWARE,
    )
    concurrency: float = option(
        1.0,
        "Requests in flight, each replaced as it ends.",
        unit="requests",
        label="Requests in flight",
        basic=True,
        group="Requests",
    )
    rate: float = fact(0.0, "Requests that arrive a second; 0: a closed loop of `concurrency`.", "requests/s")
    isl: float = option(
        1024.0, "Tokens of a prompt.", label="Tokens of a prompt", unit="tokens", basic=True, group="Requests"
    )
    osl: float = option(
        256.0,
        "Tokens of an output.",
        label="Tokens of an answer",
        unit="tokens",
        basic=True,
        group="Requests",
    )
    cached: float = option(
        0.0, "Tokens of a prompt found in the prefix cache.", unit="tokens", group="Requests"
    )
    drafts: int = option(0, "Speculative tokens checked in one iteration.", group=SOFTWARE)
    acceptance: float = option(0.0, "Chance that a draft is accepted.", unit="a share", group=SOFTWARE)
    settings: Mapping[str, Any] = field(
        default_factory=dict, metadata=stated("Of EngineDefaults, as the user set them.")
    )
    power_cap_w: float = option(
        0.0,
        "Most watts of each GPU, like 400W: lowers its clock until it fits.",
        spelled="--power-cap",
        reads=read_watts,
        unit="watts",
        unset="the board's own limit",
        group="Limits",
    )
    usd_per_gpu_hour: float = fact(0.0, "Rent of a GPU; 0: the dearest price known, if any.", "USD/h")
