"""Documents of the post-training commands: plans, comparisons, gains from more nodes."""

from typing import Annotated, Literal

from pydantic import Field

from tangram_sim.post_training.plan import RolloutReplicas
from tangram_sim.studies.documents import DegreesDocument, Document, PlanAnswer, VersionedAnswer


class RlLayoutDocument(DegreesDocument):
    """Degrees of the training layout."""

    pp: int = Field(ge=1)
    recompute: Literal["none", "selective", "full"]


class RlPoolDocument(Document):
    """One pool: its nodes and GPUs, its busy seconds in a step, and its idle share."""

    role: str = Field(description="training, rollout, or both by turns")
    nodes: dict[str, int] = Field(description="nodes by GPU kind")
    gpus: int
    busy_s: float
    idle_share: float = Field(description="of a step")
    memory_bytes: float = Field(0.0, description="on the fullest GPU, in the fullest phase")
    memory_capacity_bytes: float = Field(0.0)


class RlPointDocument(Document):
    """The step for one split of the GPUs into training and rollout."""

    training_gpus: int
    rollout_gpus: int
    step_s: float


class RlAdvantageDocument(Document):
    """Most sequences per second that one GPU of a kind trains or generates, each in its best setting."""

    gpu: str
    gpus: int
    trains_per_s: float
    generates_per_s: float
    ratio: float | None = Field(
        description="generated over trained: the kind with the largest generates first; null: it cannot train"
    )


class RlDecisionsDocument(Document):
    """Decisions of a plan, enough to simulate it again. Nodes are by group of the fleet, in order."""

    placement: str
    mode: str
    staleness: int = Field(ge=0)
    share: float | None = Field(
        None, ge=0, description="groups begun beyond a step's own, in place of versions"
    )
    at_sync: str = Field("in-flight", description="what becomes of running requests at a weight sync")
    fetches: int = Field(1, ge=1, description="portions in which a step's sequences are taken as they come")
    sync_method: str
    dispatch: str
    training_nodes: list[Annotated[int, Field(ge=0)]]
    layout: RlLayoutDocument
    pack_tokens: int = Field(ge=0)
    rollout: list[RolloutReplicas]
    lent: list[RolloutReplicas] = Field([], description="replicas on training GPUs, in hybrid plans")


class RlPlanDocument(PlanAnswer):
    """Output of `tangram rl plan --json` and `rl estimate --json`: a step on a fleet."""

    step_s: float
    step_s_low: float = Field(description="90 % interval")
    step_s_high: float
    trained_tokens_per_s: float = Field(description="prompt and response tokens of consumed sequences")
    generated_tokens_per_s: float
    usd_per_hour: float | None = Field(None, description="of the whole fleet, GPUs without a role included")
    usd_per_million_trained_tokens: float | None = None
    decisions: RlDecisionsDocument
    pools: list[RlPoolDocument]
    idle_gpus: dict[str, int] = Field({}, description="GPUs of the fleet without a role, by kind")
    phases_s: dict[str, float] = Field(description="seconds each phase is busy")
    exposed_s: dict[str, float] = Field(description="seconds of each phase that a step waits for")
    long_tail_s: float = Field(description="of generation, after nine of ten responses are complete")
    ages: dict[str, float] = Field(description="versions between generation and training: mean, p95, most")
    lower_bound_s: float | None = None
    gap: float | None = Field(None, description="step over the bound, less one")
    curve: list[RlPointDocument] = Field([], description="the step over ratios of the same GPUs")
    kinds: list[RlAdvantageDocument] = Field([], description="comparative advantage")
    alternatives: dict[str, float] = Field({}, description="other plans played, seconds a step")
    longer_responses: dict[str, float] = Field({}, description="step of this plan at other mean lengths")
    plans: int = Field(0, description="plans played")
    planning_cpu_s: float = 0.0
    stopped: bool = Field(False, description="the time limit ended the search")
    assumptions: list[str]


class RlRuleDocument(Document):
    """A rule that assigns GPUs to training and rollout, evaluated by the same simulator."""

    rule: str
    step_s: float | None = Field(None, description="None: no plan of this rule fits")
    slower_by: float | None = Field(None, description="step over the best plan's, less one")
    training: dict[str, int] = Field({}, description="nodes by GPU kind")
    rollout_gpus: dict[str, int] = Field({})
    placement: str = ""
    mode: str = ""
    claim: str = Field("", description="what its authors report; a reference, on other baselines")


class RlCompareDocument(VersionedAnswer):
    """Output of `tangram rl compare --json`."""

    best_step_s: float
    lower_bound_s: float
    rules: list[RlRuleDocument]


class RlOfferDocument(Document):
    """The best plan with some nodes added."""

    added: str
    step_s: float
    faster_by: float | None = Field(description="share of the step that is saved; None: none fits without")
    usd_per_hour: float | None
    usd_per_million_trained_tokens: float | None
    pays: bool | None = Field(None, description="whether a million trained tokens cost less with them")
    generates: dict[str, int] = Field({}, description="GPUs that generate, by kind")
    trains: dict[str, int] = Field({})


class RlWhatIfDocument(VersionedAnswer):
    """Output of `tangram rl what-if --json` and `rl purchase --json`: nodes added, cheapest tokens first."""

    step_s: float | None = Field(description="without anything added; None: no placement fits")
    usd_per_hour: float | None = None
    usd_per_million_trained_tokens: float | None = None
    offers: list[RlOfferDocument]
    infeasible: dict[str, str] = Field({}, description="additions with which no placement fits, and why")
    not_planned: list[str] = Field([], description="additions that the time limit left no time for")
    unpriced: list[str] = Field([], description="GPU kinds without a dated price: give one with --price")


class RlSimulateDocument(VersionedAnswer):
    """Output of `tangram rl simulate --json`: a plan simulated with response lengths drawn several times."""

    seeds: int
    step_s: dict[str, float] = Field(description="mean, low, high (5th and 95th percentile), standard error")
    phases_s: dict[str, float]
    exposed_s: dict[str, float]
    idle: dict[str, float]
    longest_response: float
    preemptions: float
    ages: dict[str, float]
