"""The question of `tangram serve replan`: a service that follows prices and availability over time."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tangram_sim.errors import BadInputError
from tangram_sim.fields import about, described, option
from tangram_sim.questions.question import Question
from tangram_sim.questions.shared_fields import limit_option

if TYPE_CHECKING:
    from tangram_sim.studies.serving_replan import ServeReplanDocument

_SWITCH: dict[str, Any] = {"least": 0, "group": "Switching", "basic": True}


@described
@dataclass(frozen=True, slots=True)
class ServeReplanQuestion(Question):
    """Plan every period of a trace of prices and availability, with switches, against hindsight."""

    VERB: ClassVar[str] = "serve replan"

    problem: Path = field(
        metadata=about("A problem of kind cost, as `serve plan` takes it.", positional="PROBLEM.json")
    )
    trace: Path = field(
        metadata=about(
            "CSV time_s, gpu, price_per_hour, available[, rate_factor]: a row for each change.",
            label="Trace of prices",
            basic=True,
        )
    )
    until: float = field(
        metadata=about("Seconds at which the trace ends.", unit="seconds", above=0, basic=True)
    )
    load: float = option(120.0, "Seconds a replica is paid for before it serves.", unit="seconds", **_SWITCH)
    drain: float = option(30.0, "Seconds it is paid for after it stopped.", unit="seconds", **_SWITCH)
    lost: float = option(1.0, "USD that a request which is not served costs.", unit="USD", **_SWITCH)
    id: str | None = option(None, "Of a file with several problems, this one.")
    time_limit_s: float | None = limit_option("Seconds for all policies.", "20")

    def answer(self, *, left_s: float | None = None) -> "ServeReplanDocument":
        """Policies compared with hindsight; `left_s`: seconds left of the time limit.

        Raises BadInputError for a problem that is not a rental.
        """
        from tangram_sim.serving_planners.market_file import read_market
        from tangram_sim.serving_planners.problem import RentalProblem
        from tangram_sim.serving_planners.problem_file import load_problem
        from tangram_sim.serving_planners.replanning import Switching
        from tangram_sim.studies.serving_replan import follow_market

        given, _ = load_problem(self.problem, self.id)
        if not isinstance(given, RentalProblem):
            raise BadInputError(
                f"{self.problem}: a flow over placements is not replanned; give a problem of kind cost"
            )
        market = read_market(self.trace, given, self.until)
        switching = Switching(self.load, self.drain, self.lost)
        limit_s = self.time_limit_s if left_s is None else left_s
        return self.with_answer(follow_market(given, market, switching, limit_s))
