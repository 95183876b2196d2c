"""Schema of PROBLEM.json."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from tangram_sim.file_parts import FilePart, Text

Name = Annotated[Text, Field(min_length=1, max_length=200)]
Usd = Annotated[float, Field(gt=0, le=1e9)]
Amount = Annotated[float, Field(ge=0, le=1e15)]
Count = Annotated[int, Field(ge=0, le=10**7)]
Rate = Annotated[float, Field(ge=0, le=1e12)]


class ProblemPart(FilePart):
    """A mapping of the file; unknown keys are kept, so that they can be reported."""

    model_config = ConfigDict(extra="allow", frozen=True)


class OfferedGpuIn(ProblemPart):
    """A kind of GPU on offer."""

    price_per_hour: Usd
    available: Count | None = None
    gpus_per_node: Annotated[int, Field(ge=1, le=1024)] = 8


class ConfigurationIn(ProblemPart):
    """One way to build a replica."""

    name: Name
    gpus: Annotated[dict[Name, Annotated[int, Field(ge=1, le=100_000)]], Field(min_length=1)]
    throughput: Annotated[list[Rate | None], Field(min_length=1, max_length=10_000)]
    price_per_hour: Usd | None = None
    spot: bool = False
    most: Count | None = None
    model: Name | None = None
    role: Literal["both", "prefill", "decode"] = "both"


class RequestTypeIn(ProblemPart):
    """Requests of one type: a number, or a rate per second."""

    requests: Amount | None = None
    rate: Amount | None = None
    isl: Amount = 0.0
    osl: Amount = 0.0
    model: Name | None = None
    name: Name | None = None
    kv_bytes: Amount = 0.0


class ScenarioIn(ProblemPart):
    """A scenario that the plan must tolerate: GPUs lost, more requests, other prices."""

    name: Name | None = None
    lost: Name | list[Name] = Field([])
    coverage: Annotated[float, Field(ge=0, le=100)] = 1.0
    rate_factor: Annotated[float, Field(gt=0, le=1000)] = 1.0
    price_factor: dict[Name, Annotated[float, Field(gt=0, le=1000)]] = Field({})


class RentalIn(ProblemPart):
    """A problem of kind makespan, cost or robust: which GPUs to rent for which requests."""

    kind: Literal["makespan", "cost", "robust"]
    gpus: Annotated[dict[Name, OfferedGpuIn], Field(min_length=1, max_length=1000)]
    configurations: Annotated[list[ConfigurationIn], Field(min_length=1, max_length=100_000)]
    workload: Annotated[list[RequestTypeIn], Field(min_length=1, max_length=10_000)]
    budget_per_hour: Usd | None = None
    slices: Annotated[int, Field(ge=1, le=1000)] | None = None
    utilisation: Annotated[float, Field(gt=0, le=1)] = 1.0
    scenarios: list[ScenarioIn] = Field([])
    link_gb_per_s: Annotated[float, Field(gt=0, le=1e9)] | None = None


class FlowNodeIn(ProblemPart):
    """A node; entry k - 1 of `tokens_per_s` is what it processes while it holds k layers."""

    name: Name
    tokens_per_s: Annotated[list[Rate], Field(min_length=1, max_length=10_000)]


class FlowIn(ProblemPart):
    """A problem of kind flow: which layers of a model each node holds."""

    kind: Literal["flow"]
    layers: Annotated[int, Field(ge=1, le=10_000)]
    nodes: Annotated[list[FlowNodeIn], Field(min_length=1, max_length=1000)]
    link_tokens_per_s: list[list[Rate]]
