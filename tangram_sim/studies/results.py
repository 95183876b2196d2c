"""Return values of `plan`, `estimate` and `simulate`: the document, the simulated plan, and views of both."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tangram_sim.errors import unknown_name
from tangram_sim.fields import HasDocument, described, fact, stated
from tangram_sim.planners.api import Candidate
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.forecast import Forecast
from tangram_sim.training.plan import Plan
from tangram_sim.units import show_seconds

if TYPE_CHECKING:
    import pandas as pd


@described
@dataclass(frozen=True)
class Result(HasDocument):
    """A plan document with its simulation."""

    document: PlanDocument = field(metadata=stated("Decisions and predictions."))
    forecast: Forecast = field(metadata=stated("The played step."))
    candidates: tuple[Candidate, ...] = fact((), "Partial plans, where a record was asked for.")
    ranked: tuple[Plan, ...] = fact((), "Plans of the search, fastest first, as many as were asked for.")
    others: tuple[Forecast, ...] = fact((), "Further plans of the search, played, as many as `top` asks for.")

    @property
    def step_s(self) -> float:
        """Seconds of one optimizer step."""
        return self.document.step_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens trained per second, all GPUs together."""
        return self.document.tokens_per_s

    def to_frame(self) -> "pd.DataFrame":
        """One row per part of a stage, columns as `stages` of the plan document; SI units."""
        return self.document.to_frame("stages")

    def plot(self, what: Literal["timeline", "memory"] = "timeline") -> Any:
        """A plotly Figure: the simulated step over time, or the peak memory of every stage (GiB)."""
        from tangram_sim.studies.figures import memory_figure, timeline_figure

        if what == "memory":
            names = [self.forecast.name(seat) for seat in self.forecast.seats]
            return memory_figure(self.document.stages, names)
        if what != "timeline":
            raise unknown_name("plot", what, ("timeline", "memory"))
        return timeline_figure(self.forecast.timeline)[0]

    def __repr__(self) -> str:
        plan = self.forecast.plan
        low, high = show_seconds(self.document.step_s_low), show_seconds(self.document.step_s_high)
        return (
            f"<Result: {plan.model.name} on {plan.cluster.name}, {show_seconds(self.step_s)} a step "
            f"({low} to {high}), {self.tokens_per_s:,.0f} tokens/s on {plan.gpus_used} GPUs>"
        )
