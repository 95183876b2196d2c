"""The answer of `tangram goodput`: goodput, periods, accounts, the worth of each second, spares."""

from pydantic import Field

from tangram_sim.reliability.checkpointing import CheckpointTier
from tangram_sim.reliability.sampling import SampledShare
from tangram_sim.studies.documents import AnswerDocument, Document


class SparesDocument(Document):
    """How many spare nodes are enough."""

    nodes: int
    quantile: float
    repair_s: float = Field(description="mean of the classes that take a node")


class WorthDocument(Document):
    """Gain from one second less of a constant."""

    constant: str
    seconds: float
    gain: float = Field(description="of useful share, for one second less")
    tokens_per_day: float | None = None


class GoodputDocument(AnswerDocument):
    """`goodput --json`."""

    mtbf_s: float
    failures_source: str
    per_1000_node_days: float | None = Field(None, description="summed over classes, for the plan's nodes")
    periods_s: dict[str, float | None] = Field(
        description="young, daly, refined, exact: of the shortest tier, checkpoint included; null: none"
    )
    useful_share: dict[str, float | None] = Field(description="exact, at each of the periods")
    first_order_share: dict[str, float | None] = Field(description="to first order, at each of the periods")
    best_period_s: float
    policy: str
    goodput: float = Field(description="useful share under the policy, stated periods kept")
    tiers: list[CheckpointTier] = Field(description="with the periods that are kept, seconds")
    accounts: dict[str, float] = Field(description="shares of wall time; they sum to 1")
    tokens_per_s: float | None = Field(description="of the plan, times goodput")
    interval: list[float] = Field(description="90 %: of tokens_per_s, without a plan of the useful share")
    window_days: float = Field(description="the interval is that of the mean over such a window")
    worth: list[WorthDocument]
    spares: SparesDocument | None = None
    sample: SampledShare | None = Field(None, description="what the event simulation found")
    notes: list[str] = Field([])
