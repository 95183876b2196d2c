"""Schema of a fleet file."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from tangram_sim.file_parts import FilePart, Name
from tangram_sim.serving.engines import drafts_refused

MOST_REPLICAS = 10_000
MOST_DRAFTS = 64  # speculative tokens of one iteration

Count = Annotated[int, Field(ge=1, le=10**9)]
Degree = Annotated[int, Field(ge=1, le=4096)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]
Usd = Annotated[float, Field(ge=0, le=1e9)]


class _FleetPart(FilePart):
    model_config = ConfigDict(frozen=True)


class OwnCostsIn(_FleetPart):
    """Coefficients that a user measured, for an iteration of n prompt rows and b decoding requests.

    It takes step_s + prompt_s n + decode_s b + context_s x the sum of contexts + score_s x query-key pairs.
    """

    step_s: Annotated[float, Field(gt=0, le=1e6)]
    decode_s: Seconds = 0.0
    context_s: Seconds = 0.0
    prompt_s: Seconds = 0.0
    score_s: Seconds = 0.0
    request_s: Seconds = 0.0
    kv_blocks: Count
    block_tokens: Annotated[int, Field(ge=1, le=4096)] = 16


class StageIn(_FleetPart):
    """One stage of a pipeline over unequal GPUs."""

    gpu: Name
    tp: Degree = 1
    layers: Annotated[int, Field(ge=1, le=100_000)]


class ReplicaIn(_FleetPart):
    """One or more equal replicas; `model` where the fleet serves several."""

    name: Name | None = None
    model: Name | None = None
    count: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] = 1
    gpu: Name | None = None
    stages: Annotated[list[StageIn], Field(min_length=1, max_length=1000)] | None = None
    tp: Degree = 1
    pp: Degree = 1
    ep: Degree = 1
    attention_dp: Degree = 1
    drafts: Annotated[int, Field(ge=0, le=MOST_DRAFTS)] = 0
    acceptance: Annotated[float, Field(ge=0, le=1)] = 0.0
    costs: OwnCostsIn | None = None
    usd_per_hour: Usd = 0.0
    role: Literal["both", "prefill", "decode"] = "both"
    up: list[tuple[Seconds, Seconds | None]] = Field([(0.0, None)])
    boot_s: Seconds = 0.0
    notice_s: Seconds = 0.0
    shares: list[Annotated[float, Field(ge=0)]] | None = None
    max_batched_tokens: Count | None = None
    max_sequences: Annotated[int, Field(ge=1, le=65536)] | None = None
    # With which a replica keeps its plan's objective: what it is launched with, no limit of a simulation.
    planned_sequences: Annotated[int, Field(ge=1, le=65536)] | None = None
    memory_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    precision: Name | None = None  # of this replica's weights; of its KV cache
    kv_precision: Name | None = None
    kv_blocks: Count | None = None
    recv_interval: Annotated[int, Field(ge=1, le=10**6)] | None = None

    def drafts_refused(self, engine: str) -> str:
        """Why an engine cannot be started with draft tokens on this replica; "" if it can."""
        depth = max(self.pp, len(self.stages or ()))
        return drafts_refused(engine, stages=depth, attention_dp=self.attention_dp)


Tokens = Annotated[float, Field(gt=0)]
TypeIn = tuple[Tokens, Tokens] | tuple[Tokens, Tokens, Name]  # prompt, output, model where there are several


class FleetIn(_FleetPart):
    """A whole fleet file."""

    model: Name | None = None
    engine: Name = "vllm"
    engine_version: Name = ""
    precision: Name = "bf16"
    kv_precision: Name = "auto"
    link_gb_per_s: Annotated[float, Field(gt=0, le=1e6)] | None = None
    power_cap_w: Annotated[float, Field(ge=0, le=1e6)] = 0.0  # of each GPU; 0: the board's own limit
    types: list[TypeIn] = Field([])
    replicas: Annotated[list[ReplicaIn], Field(min_length=1, max_length=MOST_REPLICAS)]
