"""The question of `tangram export`: a plan as the launch configuration of a training framework."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tangram_sim.errors import BadInputError
from tangram_sim.fields import SOFTWARE, described, option, part
from tangram_sim.questions.question import Question
from tangram_sim.questions.shared_fields import Hardware, plan_argument

if TYPE_CHECKING:
    from tangram_sim.export.documents import ExportDocument
    from tangram_sim.export.formats import Exported
    from tangram_sim.training.plan import Plan

_FRAMEWORK: dict[str, Any] = {"group": SOFTWARE, "basic": True}


def _formats() -> Iterable[str]:
    from tangram_sim.export.formats import FORMATS

    return FORMATS


@described
@dataclass(frozen=True, slots=True)
class ExportQuestion(Question):
    """Write a plan as launch configuration; exit 2 with the reasons where a framework cannot express it."""

    VERB: ClassVar[str] = "export"

    plan: Path = plan_argument()
    to: str = option(
        "",
        "Format: rankmap, torchrun, megatron, torchtitan, deepspeed, flagscale or torch-pipeline-csv.",
        spelled="--to,--for",
        label="Format",
        unset="none, it must be given",
        suggested=_formats,
        **_FRAMEWORK,
    )
    framework_version: str = option(
        "", "Version of the framework, e.g. 0.2.2 of torchtitan.", unset="the newest known", **_FRAMEWORK
    )
    differing: bool = option(
        False,
        "Write the files also where the framework trains another model; every difference is listed.",
        **_FRAMEWORK,
    )
    check: bool = option(
        False,
        "Let the framework's own parser read the files first, where it is installed.",
        on_page=False,
        **_FRAMEWORK,
    )
    python: str = option(
        "",
        "Interpreter that has the framework.",
        unset="the one running",
        on_page=False,
        **_FRAMEWORK,
    )
    hardware: Hardware = field(default=Hardware(), metadata=part())

    def __post_init__(self) -> None:
        """Raise BadInputError if no format is given."""
        Question.__post_init__(self)
        if not self.to:
            raise BadInputError(f"`to=` is missing: give one of {', '.join(_formats())}, e.g. `to=megatron`")

    def answer(self) -> "ExportDocument":
        """The files by name, and notes on them.

        Raises UnknownNameError for a format or version, CannotExportError for a plan that the framework
        cannot express.
        """
        from tangram_sim.export.documents import ExportDocument
        from tangram_sim.export.formats import export
        from tangram_sim.studies.planfile import plan_from_document, read_plan

        made = plan_from_document(read_plan(self.plan), self.hardware.load(), str(self.plan))
        found = export(
            made, self.to, str(self.plan), version=self.framework_version, differing=self.differing
        )
        checked = [self._checked(found, made)] if self.check else []
        return self.with_answer(ExportDocument(to=self.to, files=found.files, notes=[*checked, *found.notes]))

    def _checked(self, found: "Exported", plan: "Plan") -> str:
        """Verdict of the framework's parser. Raises BadInputError without a parser; CannotExportError."""
        from tangram_sim.export.checking import check
        from tangram_sim.planners.uniform.frameworks import FRAMEWORKS

        if self.to not in FRAMEWORKS:
            known = ", ".join(FRAMEWORKS)
            raise BadInputError(f"`check=True`: {self.to} has no parser of its own; frameworks: {known}")
        return check(found, plan, self.to, self.framework_version, self.python or sys.executable)
