"""The question of `tangram serve tune`: engine settings that serve most requests within an objective."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tangram_sim.errors import BadInputError
from tangram_sim.fields import about, described, option, part
from tangram_sim.questions.question import Question
from tangram_sim.questions.requests import MadeRequests, slo_of
from tangram_sim.questions.service_goal import DraftOptions
from tangram_sim.questions.shared_fields import Hardware
from tangram_sim.written import name_list

if TYPE_CHECKING:
    from tangram_sim.studies.serving_tuning import ServeTuneDocument, Setting

_CHOICES: dict[str, Any] = {"group": "Settings that may be chosen", "on_page": False}


@described
@dataclass(frozen=True, slots=True)
class ServeTuneQuestion(Question):
    """Find the engine settings of every replica that serve the most requests within --slo, and a bound."""

    VERB: ClassVar[str] = "serve tune"

    fleet: Path = field(
        metadata=about("A fleet file (YAML), or a plan of `serve plan -o`.", positional="PLAN_OR_FLEET")
    )
    requests: MadeRequests = field(default=MadeRequests(), metadata=part())
    slo: str = option(
        "ttft=1,tpot=0.05",
        "What 99 % of the requests keep, seconds.",
        label="A good request keeps",
        example="ttft=1,tpot=0.05",
        basic=True,
    )
    precisions: str = option("", "Number formats of weights, like bf16,fp8.", **_CHOICES)
    kv_precisions: str = option("", "Number formats of the KV cache, like auto,fp8.", **_CHOICES)
    memory_fractions: str = option(
        "", "Shares of memory that the engine may take, like 0.9,0.95.", **_CHOICES
    )
    degrees: bool = option(
        False,
        "Of models with experts: tensor, data-parallel attention and expert degrees on the same GPUs.",
        **_CHOICES,
    )
    speculation: DraftOptions = field(
        default=DraftOptions(),
        metadata=part(drafts=_CHOICES, acceptance=_CHOICES | {"unset": "as the file says"}),
    )
    hardware: Hardware = field(default=Hardware(), metadata=part())

    def answer(self) -> "ServeTuneDocument":
        """The fleet with tuned settings. Raises BadInputError, UnknownNameError, InfeasibleError."""
        from tangram_sim.hwdb import load_model
        from tangram_sim.serving.fleet_file import fleet_data, read_fleet
        from tangram_sim.studies.serving_tuning import degrees_of, tune_service

        choices: dict[str, list[Setting]] = {
            "precision": [*_listed(self.precisions)],
            "kv_precision": [*_listed(self.kv_precisions)],
            "memory_fraction": [*map(_share, _listed(self.memory_fractions))],
            "drafts": [*self.speculation.drafts],
        }
        data = fleet_data(self.fleet)
        hwdb = self.hardware.load()
        read_fleet(data, hwdb, str(self.fleet))
        if (accepted := self.speculation.acceptance) is not None:
            data = {**data, "replicas": [{**one, "acceptance": accepted} for one in data["replicas"]]}
        if self.degrees:
            several = [
                degrees_of(load_model(one.get("model") or data["model"]), one) for one in data["replicas"]
            ]
            choices["degrees"] = [*dict.fromkeys(each for words in several for each in words)]
        found = tune_service(data, self.requests.made(), slo_of(self.slo), hwdb, choices)
        return self.with_answer(found)


def _listed(text: str) -> list[str]:
    return [*name_list(text)] if text else []


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= 1.0:
        raise BadInputError(f"`memory_fractions={text}`: give shares above 0 and up to 1, like 0.9,0.95")
    return value
