"""The question of `tangram simulate`: prediction for the plan in a file."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tangram_sim.fields import described, option, part
from tangram_sim.questions.question import Question
from tangram_sim.questions.shared_fields import Hardware, plan_argument, slow_option

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.studies.results import Result


@described
@dataclass(frozen=True, slots=True)
class SimulateQuestion(Question):
    """Replay a plan file; rows under --hwdb win over the figures in the file and re-price the decisions."""

    VERB: ClassVar[str] = "simulate"

    plan: Path = plan_argument()
    engine: str = option(
        "fast", "fast (compiled) or reference (SimPy).", choices=("fast", "reference"), basic=True
    )
    slow: tuple[str, ...] = slow_option()
    hardware: Hardware = field(default=Hardware(), metadata=part())

    def answer(self) -> "Result":
        """The plan replayed, under `slow` or under the slowdowns recorded in its file.

        Raises BadInputError for files of another schema or contradictory decisions.
        """
        from tangram_sim.studies import api

        database = self.hardware.load()
        result = self._slowed(api.simulate(self.plan, engine=self.engine, hwdb=database), database)
        return replace(result, document=self.with_answer(result.document))

    def _slowed(self, result: "Result", database: "Hwdb") -> "Result":
        from tangram_sim.studies.api import CHANGED
        from tangram_sim.studies.planfile import read_plan_keys
        from tangram_sim.studies.slow_files import read_every_slow, slow_of
        from tangram_sim.studies.slow_plans import replayed

        made = result.forecast.plan
        section = read_plan_keys(self.plan)[0].slow
        if self.slow:
            given = read_every_slow(list(self.slow), made.cluster)
        elif section is not None:
            given = slow_of(section)
        else:
            return result
        if given.is_nothing:
            return result
        played = replayed(made, given, database, self.engine)
        changed = CHANGED.among(result.document.findings)
        return replace(played, document=played.document.with_findings([*changed, *played.document.findings]))
