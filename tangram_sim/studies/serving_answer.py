"""The answer of `tangram serve estimate`, and how its intervals are made."""

from math import exp
from typing import Any

from pydantic import Field

from tangram_sim.studies.documents import VersionedAnswer

INTERVAL = 1.645  # standard deviations either side of 90 %


class ServeEstimateDocument(VersionedAnswer):
    """Output of `tangram serve estimate --json`: one replica under a steady load; times in seconds."""

    verdict: str = Field(
        "",
        description="of a rate that the replica cannot carry: by how much; times are then those of requests "
        "once admitted, with all seats taken",
    )
    tpot_s: float = Field(description="seconds a token, after the first")
    ttft_s: float = Field(description="seconds to the first token")
    e2e_s: float
    output_tok_s: float = Field(description="output tokens per second of the replica")
    request_rate: float = Field(description="requests completed per second")
    kv_tokens: int
    kv_blocks: int
    step_s: float = Field(description="one iteration of pure decode")
    prompt_s: float = Field(description="what one prompt adds to the iterations")
    running: float = Field(description="requests that decode at once")
    seats: float = Field(description="requests that could")
    overloaded: bool = Field(False, description="more requests arrive than the replica can carry")
    greatest_request_rate: float = Field(description="requests per second with all seats taken")
    limited_by: str
    parts_s: dict[str, float] = Field(description="where the time between two tokens goes")
    usd_per_million_output_tokens: float | None = None
    gpus: int
    gpu_w: float = Field(0.0, description="mean watts of all GPUs of the replica")
    host_w: float = Field(0.0, description="mean watts of the hosts' shares beside them")
    joules_per_output_token: float = Field(0.0, description="of the GPUs, prompts included, hosts apart")
    intervals: dict[str, tuple[float, float]] = Field(description="90 % intervals")
    assumptions: dict[str, Any] = Field(description="engine defaults, calibration, hardware, price")
    notes: list[str] = Field([])


def interval(value: float, spread: float) -> tuple[float, float]:
    """The 90 % interval of `value`, where the logarithm of its error has the standard deviation `spread`."""
    reach = exp(INTERVAL * spread)
    return value / reach, value * reach
