"""The answer of `tangram serve estimate`, and its intervals."""

from math import exp
from typing import Any

from pydantic import Field

from tangram_sim.studies.documents import Document, VersionedAnswer

INTERVAL = 1.645  # standard deviations either side of 90 %


class ReplicaPowerDocument(Document):
    """Mean power of replicas, and joules of a token."""

    gpu_w: float = Field(0.0, description="mean watts of all GPUs of the replicas")
    host_w: float = Field(0.0, description="mean watts of the hosts' shares beside them")
    joules_per_output_token: float = Field(0.0, description="of the GPUs, prompts included, hosts apart")
    intervals: dict[str, tuple[float, float]] = Field(description="90 % intervals")


class ServicePredictionDocument(VersionedAnswer):
    """Predicted behaviour of a service, and the sources of the prediction."""

    verdict: str = Field(
        "",
        description="of an overload: by how much, and what would keep up; times are then those of requests "
        "once admitted, with all seats taken",
    )
    overloaded: bool = Field(False, description="more requests arrive than the service can carry")
    output_tok_s: float = Field(description="output tokens per second")
    usd_per_million_output_tokens: float | None = None
    assumptions: dict[str, Any] = Field(description="engine defaults, calibration, hardware, price")
    notes: list[str] = Field([])


class ServeEstimateDocument(ReplicaPowerDocument, ServicePredictionDocument):
    """Output of `tangram serve estimate --json`: one replica under a steady load; times in seconds."""

    tpot_s: float = Field(description="seconds a token, after the first")
    ttft_s: float = Field(description="seconds to the first token")
    e2e_s: float
    request_rate: float = Field(description="requests completed per second")
    kv_tokens: int
    kv_blocks: int
    step_s: float = Field(description="one iteration of pure decode")
    prompt_s: float = Field(description="what one prompt adds to the iterations")
    running: float = Field(description="requests that decode at once")
    seats: float = Field(description="requests that could")
    greatest_request_rate: float = Field(description="requests per second with all seats taken")
    limited_by: str
    parts_s: dict[str, float] = Field(description="where the time between two tokens goes")
    gpus: int


def interval(value: float, spread: float) -> tuple[float, float]:
    """The 90 % interval of `value`, where the logarithm of its error has the standard deviation `spread`."""
    reach = exp(INTERVAL * spread)
    return value / reach, value * reach
