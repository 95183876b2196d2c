"""The power section of a plan: caps, watts, joules and carbon, compared with the plan without caps."""

from pydantic import Field

from tangram_sim.file_parts import FilePart
from tangram_sim.units import percent


class CappedKind(FilePart):
    """Power limit, clock and mean watts of one kind of GPU."""

    gpu: str
    gpus: int
    cap_w: float = Field(description="power limit to set on each; the board's own where it is not capped")
    clock: float = Field(gt=0, le=1, description="relative to the highest, in matrix products")
    capped: bool
    mean_w: float = Field(description="of each over a step")
    host_w: float = Field(0.0, description="of its share of the host, beside it")


class PowerPoint(FilePart):
    """A plan at some clocks: a point of the curve of throughput against watts."""

    clocks: dict[str, float] = Field(description="by GPU kind, relative to the highest")
    step_s: float
    site_kw: float = Field(description="mean over a step of GPUs and hosts, idle ones too, times PUE")
    joules_per_token: float = Field(description="of the site")
    usd_per_million_tokens: float | None = Field(None, description="rent and electricity; null: no price")

    @property
    def tokens_per_s(self) -> float:
        """Tokens trained per second."""
        return self.site_kw * 1000 / self.joules_per_token

    @property
    def clock_words(self) -> str:
        """The clocks in words: `H100-SXM5-80GB 78 %, T4 100 %`."""
        return ", ".join(f"{name} {percent(clock)}" for name, clock in self.clocks.items())


class PowerDocument(FilePart):
    """Power of a plan: caps, what they cost in time and save in energy."""

    objective: dict[str, float] = Field(description="weights of time, energy and cost")
    kinds: list[CappedKind]
    pue: float = Field(ge=1)
    chosen: PowerPoint
    reference: PowerPoint = Field(description="the fastest plan without caps and limit of the site")
    site_kw_low: float = Field(description="90 % interval of the chosen one's")
    site_kw_high: float
    site_kw_most: float = Field(description="where every GPU draws all that it may at the same time")
    site_limit_kw: float | None = Field(None, description="asked for; `site_kw` is held below it")
    co2_g_per_million_tokens: float | None = None
    slower: float = Field(description="step_s over that of the reference without caps, less 1")
    slower_low: float = Field(description="90 % interval, of the assumed clocks alone")
    slower_high: float
    saved: float = Field(description="share of the joules per token of the reference that is saved")
    tried: list[PowerPoint] = Field([], description="clocks that were tried, fastest first")
    curve: list[PowerPoint] = Field(
        [],
        description="throughput against power, fastest first: of clocks tried, and of all kinds lowered "
        "together, those that no other beats in both",
    )
