"""The question of `tangram serve export`: the files that start a planned service."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tangram_sim.errors import BadInputError
from tangram_sim.fields import SOFTWARE, about, described, option, part
from tangram_sim.questions.question import Question
from tangram_sim.questions.shared_fields import Hardware

if TYPE_CHECKING:
    from tangram_sim.export.documents import ExportDocument


def _formats() -> tuple[str, ...]:
    """The formats that are known."""
    from tangram_sim.export.service.formats import FORMATS

    return FORMATS


@described
@dataclass(frozen=True, slots=True)
class ServeExportQuestion(Question):
    """Write launch lines or Kubernetes manifests, and router weights; exit 2 if that is impossible."""

    VERB: ClassVar[str] = "serve export"

    plan: Path = field(
        metadata=about("Written by `serve plan -o`, or a fleet file.", positional="PLAN_OR_FLEET")
    )
    to: str = option(
        "",
        "Format: vllm, sglang, trtllm or kubernetes.",
        spelled="--to,--for",
        suggested=_formats,
        unset="the plan's engine",
        group=SOFTWARE,
        basic=True,
    )
    weights: tuple[str, ...] = option(
        (),
        "MODEL=PATH_OR_HUB_NAME of its checkpoint; may be repeated.",
        group=SOFTWARE,
        basic=True,
        on_page=False,
    )
    hardware: Hardware = field(default=Hardware(), metadata=part())

    def answer(self) -> "ExportDocument":
        """The files by name. Raises BadInputError, UnknownNameError, CannotExportError."""
        from tangram_sim.export.documents import ExportDocument
        from tangram_sim.export.service.commands import ENGINES
        from tangram_sim.export.service.formats import export_service
        from tangram_sim.export.service.groups import load_service

        places = {}
        for text in self.weights:
            name, sign, place = text.partition("=")
            if not sign or not name or not place:
                raise BadInputError(f"`weights={text}`: give it like llama3-8b=meta-llama/Llama-3.1-8B")
            places[name] = place
        service = load_service(self.plan, self.hardware.load(), self.to if self.to in ENGINES else "")
        to = self.to or service.engine
        found = export_service(service, to, places)
        return self.with_answer(ExportDocument(to=to, files=found.files, notes=[*found.notes]))
