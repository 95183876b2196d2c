"""The questions of `tangram rl`: planning, comparing and simulating a post-training step."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tangram_sim.errors import BadInputError
from tangram_sim.fields import SOFTWARE, about, described, option, part
from tangram_sim.planners.uniform.degrees import Uniform
from tangram_sim.questions.question import Question, question_of
from tangram_sim.questions.rl_options import POOLS, RlSetting, StepOptions
from tangram_sim.questions.shared_fields import clusters, models

if TYPE_CHECKING:
    from tangram_sim.export.documents import ExportDocument
    from tangram_sim.rl_planners.problem import RlProblem
    from tangram_sim.studies.rl_documents import (
        RlCompareDocument,
        RlPlanDocument,
        RlSimulateDocument,
        RlWhatIfDocument,
    )


_MODEL: dict[str, Any] = about("Model name, or a config.json.", positional="MODEL", suggested=models)
_FLEET: dict[str, Any] = about(
    "The fleet: a name, a file, or H800x8:2+H20x8:4.", positional="FLEET", suggested=clusters
)


@dataclass(frozen=True, slots=True)
class _OnFleet(Question):
    """Base of questions about post-training one model on one fleet."""

    model: str = field(metadata=_MODEL)
    fleet: str = field(metadata=_FLEET)
    step: StepOptions = field(default=StepOptions(), metadata=part())
    setting: RlSetting = field(default=RlSetting(), metadata=part())

    @property
    def problem(self) -> "RlProblem":
        """The placement problem that is asked about."""
        hwdb = self.setting.hardware.load()
        return self.setting.problem(self.step, self.model, self.fleet, hwdb)


@described
@dataclass(frozen=True, slots=True)
class RlPlanQuestion(_OnFleet):
    """Choose which GPUs generate and which train: best placement, lower bound, step by split of GPUs."""

    VERB: ClassVar[str] = "rl plan"

    def answer(self) -> "RlPlanDocument":
        """The plan. Raises InfeasibleError where no placement fits."""
        from tangram_sim.planners.deadline import Deadline
        from tangram_sim.studies.rl_plan import searched_document

        problem = self.problem
        prices = self.setting.prices(problem)
        return self.with_answer(searched_document(problem, prices, Deadline(self.setting.limit_s)))


@described
@dataclass(frozen=True, slots=True)
class RlCompareQuestion(_OnFleet):
    """Compare the best placement with other rules: colocated, fixed ratios, and rules from papers."""

    VERB: ClassVar[str] = "rl compare"

    def answer(self) -> "RlCompareDocument":
        """The step of each rule. Raises InfeasibleError where no placement fits."""
        from tangram_sim.planners.deadline import Deadline
        from tangram_sim.studies.rl_beside import compared

        return self.with_answer(compared(self.problem, Deadline(self.setting.limit_s)))


@described
@dataclass(frozen=True, slots=True)
class RlWhatIfQuestion(_OnFleet):
    """Compare additions of nodes: the best step with each, and USD per million trained tokens."""

    VERB: ClassVar[str] = "rl what-if"

    add: tuple[str, ...] = option(
        (), "Nodes to add, e.g. H20x8:2; may be given several times.", basic=True, group="Additions"
    )

    def __post_init__(self) -> None:
        """Raise BadInputError if nothing is added."""
        Question.__post_init__(self)
        if not self.add:
            raise BadInputError("`add=`: name the nodes to add, e.g. H20x8:2")

    def answer(self) -> "RlWhatIfDocument":
        """Additions, cheapest trained tokens first. Raises InfeasibleError where no placement fits."""
        from tangram_sim.planners.deadline import Deadline
        from tangram_sim.studies.rl_beside import what_if

        problem = self.problem
        prices = self.setting.prices(problem, *self.add)
        return self.with_answer(what_if(problem, self.add, prices, Deadline(self.setting.limit_s)))


@described
@dataclass(frozen=True, slots=True)
class RlPurchaseQuestion(_OnFleet):
    """Choose nodes to rent beside a fleet: numbers of each offer, by USD per million trained tokens."""

    VERB: ClassVar[str] = "rl purchase"

    offer: tuple[str, ...] = option(
        (), "Node on offer, e.g. H20x8; may be given several times.", basic=True, group="Additions"
    )
    most: int = option(4, "Most nodes of one offer.", least=1, most=64, basic=True, group="Additions")

    def __post_init__(self) -> None:
        """Raise BadInputError if nothing is offered."""
        Question.__post_init__(self)
        if not self.offer:
            raise BadInputError("`offer=`: name the nodes on offer, e.g. H20x8")

    def answer(self) -> "RlWhatIfDocument":
        """Additions, cheapest trained tokens first. Raises InfeasibleError where no placement fits."""
        from tangram_sim.planners.deadline import Deadline
        from tangram_sim.studies.rl_beside import what_if

        problem = self.problem
        numbers = [number for number in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if number <= self.most]
        added = [f"{node}:{number}" for node in self.offer for number in dict.fromkeys([*numbers, self.most])]
        prices = self.setting.prices(problem, *added)
        return self.with_answer(what_if(problem, added, prices, Deadline(self.setting.limit_s)))


def _degree(words: str, most: int) -> dict[str, Any]:
    """Metadata of a parallel degree of the training layout."""
    return {"help": words, "least": 1, "most": most, "group": POOLS, "basic": False}


@described
@dataclass(frozen=True, slots=True)
class RlEstimateQuestion(_OnFleet):
    """Predict the seconds of a step, phase by phase, for given pools and layouts."""

    VERB: ClassVar[str] = "rl estimate"

    fleet: str = field(
        metadata=about(
            "GPUs that train; a name, a file, or H800x8:2.", positional="FLEET", suggested=clusters
        )
    )
    rollout: str | None = option(
        None,
        "GPUs of rollout alone, e.g. H20x8:4.",
        unset="the training GPUs by turns (colocated)",
        basic=True,
        group=POOLS,
    )
    layout: Uniform = field(
        default=Uniform(recompute="full"),
        metadata=part(
            *("tp", "pp", "cp", "ep", "recompute"),
            tp=_degree("Tensor-parallel degree of training.", 64),
            pp=_degree("Pipeline stages of training.", 512),
            cp=_degree("Context-parallel degree of training.", 64),
            ep=_degree("Expert-parallel degree of training.", 512),
            recompute={"help": "Activation recomputation.", "group": POOLS, "basic": False},
        ),
    )
    gen_tp: int = option(1, "Tensor-parallel degree of an engine.", least=1, most=64, group=POOLS)
    gen_memory: float = option(
        0.6, "Share of GPU memory of an engine.", unit="a share", above=0, most=1, group=POOLS
    )

    def answer(self) -> "RlPlanDocument":
        """The step. Raises InfeasibleError, with the phase, where memory does not suffice."""
        from tangram_sim.post_training.plan import (
            ASYNC,
            COLOCATED,
            ONE_STEP_OFF,
            SPLIT,
            SYNC,
            Mode,
            RlPlan,
            RolloutReplicas,
            TrainingPool,
        )
        from tangram_sim.post_training.step import play_step
        from tangram_sim.studies.rl_plan import plan_document

        hwdb = self.setting.hardware.load()
        whole = self.fleet if self.rollout is None else f"{self.fleet}+{self.rollout}"
        problem = self.setting.problem(self.step, self.model, self.fleet, hwdb)
        generates = self.setting.problem(self.step, self.model, self.rollout or self.fleet, hwdb)
        colocated = self.rollout is None
        layout = replace(self.layout, zero_stage=1)
        pool = TrainingPool(
            problem.fleet, layout, self.setting.pack_tokens, stack=problem.stack, offload=colocated
        )
        replicas = []
        for group in generates.fleet.groups:
            gpus = group.count * group.node.gpus
            if gpus % self.gen_tp:
                raise BadInputError(f"`gen_tp={self.gen_tp}` does not divide the {gpus} GPUs of {group.name}")
            replicas.append(
                RolloutReplicas(
                    group.node.gpu.name,
                    gpus // self.gen_tp,
                    self.gen_tp,
                    engine=self.setting.engine,
                    memory_fraction=self.gen_memory,
                )
            )
        eta = self.setting.staleness
        mode = Mode(SYNC if not eta else ONE_STEP_OFF if eta == 1 else ASYNC, eta)
        plan = RlPlan(
            pool,
            tuple(replicas),
            COLOCATED if colocated else SPLIT,
            Mode() if colocated else mode,
            self.setting.sync_method,
        )
        if not colocated:
            problem = replace(problem, fleet=self.setting.problem(self.step, self.model, whole, hwdb).fleet)
        prices = self.setting.prices(problem)
        outcome = play_step(problem.work, plan, hwdb, overheads=problem.overheads)
        return self.with_answer(plan_document(outcome, problem, prices))


@described
@dataclass(frozen=True, slots=True)
class RlSimulateQuestion(Question):
    """Simulate a plan with response lengths drawn repeatedly: spread of the step, waiting, sequence ages."""

    VERB: ClassVar[str] = "rl simulate"

    plan: Path = field(metadata=about("A file written by `tangram rl plan -o`.", positional="PLAN"))
    seeds: int = option(8, "Steps with lengths drawn anew.", least=1, most=10_000, basic=True)
    seed: int = option(0, "First seed of the draws.", least=0)
    response_tokens: float | None = option(
        None,
        "Mean tokens of a response, where it has changed since.",
        unit="tokens",
        least=1,
        unset="the plan's",
        basic=True,
    )
    player: str = option("fast", "Player of rollouts.", choices=("fast", "reference"))

    def answer(self) -> "RlSimulateDocument":
        """Results of simulated steps. Raises BadInputError for files without a plan."""
        from tangram_sim.studies.rl_beside import simulated
        from tangram_sim.studies.rl_plan import plan_from

        asked, document = read_plan(self.plan)
        if self.response_tokens is not None:
            if asked.step.lengths is not None:
                raise BadInputError(
                    f"`response_tokens={self.response_tokens:g}`: {self.plan} is planned for the lengths in "
                    f"{asked.step.lengths}; plan without `lengths=` to play other means"
                )
            asked = replace(asked, step=replace(asked.step, response_tokens=self.response_tokens))
        problem = asked.problem
        plan = plan_from(document.decisions, problem)
        return self.with_answer(simulated(plan, problem, self.seeds, self.player, self.seed))


@described
@dataclass(frozen=True, slots=True)
class RlExportQuestion(Question):
    """Write the YAML of verl or NeMo-RL, or AReaL's allocation mode; exit 2 for what cannot be expressed."""

    VERB: ClassVar[str] = "rl export"

    plan: Path = field(metadata=about("A file written by `tangram rl plan -o`.", positional="PLAN"))
    to: str = option(
        "verl", "Framework: verl, nemo-rl or areal.", spelled="--to,--for", group=SOFTWARE, basic=True
    )
    nearest: bool = option(
        False, "Write the nearest plan that the framework can express.", group=SOFTWARE, basic=True
    )

    def answer(self) -> "ExportDocument":
        """The files by name. Raises BadInputError, UnknownNameError, CannotExportError."""
        from tangram_sim.export.documents import ExportDocument
        from tangram_sim.export.post_training import export_post_training
        from tangram_sim.studies.rl_plan import plan_from

        asked, document = read_plan(self.plan)
        problem = asked.problem
        found = export_post_training(
            plan_from(document.decisions, problem),
            problem.work,
            self.to,
            nearest=self.nearest,
            fleet=problem.fleet,
        )
        return self.with_answer(ExportDocument(to=self.to, files=found.files, notes=[*found.notes]))


def read_plan(path: Path) -> tuple[RlPlanQuestion, "RlPlanDocument"]:
    """The question and the answer in a file of `rl plan -o`. Raises BadInputError for any other file."""
    from tangram_sim.datafiles import read_json
    from tangram_sim.studies.rl_documents import RlPlanDocument

    document = RlPlanDocument.read(read_json(path), f"{path}: no plan of `tangram rl plan -o`")
    asked = question_of(document.question or {}, str(path))
    if not isinstance(asked, RlPlanQuestion):
        raise BadInputError(f"{path}: an answer of {asked.VERB}; give one of `tangram rl plan -o`")
    return asked, document
