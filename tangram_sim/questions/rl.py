"""The questions of `tangram rl`: a step of post-training, and what is asked about it."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.fields import LIMITS, SEARCH, about, described, option, part
from tangram_sim.questions.common import Hardware
from tangram_sim.questions.question import Question, question_of

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.post_training.lengths import ResponseLengths
    from tangram_sim.post_training.workload import PostTraining
    from tangram_sim.rl_planners.problem import RlProblem
    from tangram_sim.studies.rl_documents import (
        RlCompareDocument,
        RlPlanDocument,
        RlSimulateDocument,
        RlWhatIfDocument,
    )
    from tangram_sim.studies.rl_plan import RlPrices

# Algorithm -> which passes it has beside the policy's update: (reference, critic).
ALGORITHMS = {"grpo": (True, False), "ppo": (True, True), "dapo": (False, False)}
YES_NO = ("auto", "yes", "no")
_STEP: dict[str, Any] = {"group": "Step"}
_BASIC: dict[str, Any] = {**_STEP, "basic": True}
_POOLS = "Pools"


@described
@dataclass(frozen=True, slots=True)
class StepOptions:
    """One step of post-training: prompts, samples, lengths, updates and the models that take part."""

    algorithm: str = option(
        "grpo",
        "Algorithm: grpo, ppo (with a critic) or dapo (without a reference).",
        choices=tuple(ALGORITHMS),
        **_BASIC,
    )
    prompts: int = option(64, "Prompts of one step.", least=1, most=1 << 20, example="512", **_BASIC)
    samples: int = option(
        16, "Responses to each prompt (group size).", least=1, most=65536, example="16", **_BASIC
    )
    prompt_tokens: float = option(
        256.0, "Mean tokens of a prompt.", unit="tokens", least=1, most=10_000_000, **_STEP
    )
    response_tokens: float = option(
        2048.0, "Mean tokens of a response.", unit="tokens", least=1, most=10_000_000, **_BASIC
    )
    cap: int = option(
        8192, "Most tokens of a response.", unit="tokens", least=1, most=10_000_000, example="8192", **_BASIC
    )
    capped_share: float | None = option(
        None,
        "Share of responses that end at the cap; with the mean it gives the spread of lengths.",
        unit="a share",
        above=0,
        below=1,
        unset="a lognormal distribution of sigma 0.7",
        **_STEP,
    )
    lengths: Path | None = option(
        None,
        "A file of observed response lengths, one number a line: drawn from instead.",
        on_page=False,
        **_STEP,
    )
    train_batch_sequences: int | None = option(
        None,
        "Sequences of one optimizer update (mini-batch).",
        least=1,
        unset="all sequences of the step",
        **_STEP,
    )
    epochs: int = option(1, "Passes over the sequences of a step.", least=1, most=64, **_STEP)
    reference: str = option(
        "auto", "Whether a frozen reference is asked for log-probabilities (KL).", choices=YES_NO, **_STEP
    )
    old_logprobs: str = option(
        "trainer",
        "Who computes the old log-probabilities: the trainer anew, or rollout with its tokens.",
        choices=("trainer", "rollout"),
        **_STEP,
    )
    critic: str | None = option(
        None, "Model of the critic (ppo).", unset="the policy's model for ppo, else none", **_STEP
    )
    reward_s: float = option(
        0.0,
        "Seconds that the rule of the reward takes behind the last response.",
        unit="seconds",
        least=0,
        **_STEP,
    )
    dtype: str = option("bf16", "Training precision: bf16, fp16, fp8, mxfp8.", **_STEP)
    rollout_precision: str = option("bf16", "Precision of the engine's weights: bf16, fp8.", **_STEP)

    def work(self, model: str) -> "PostTraining":
        """The step of this model. Raises BadInputError and UnknownNameError."""
        from tangram_sim.hwdb import load_model
        from tangram_sim.post_training.workload import PostTraining, updates_of
        from tangram_sim.precision import PRECISIONS
        from tangram_sim.training.job import RECIPES

        if self.dtype not in RECIPES:
            raise unknown_name("dtype", self.dtype, RECIPES)
        if self.rollout_precision not in PRECISIONS:
            raise unknown_name("rollout precision", self.rollout_precision, PRECISIONS)
        policy = load_model(model)
        reference, with_critic = ALGORITHMS[self.algorithm]
        sequences = self.prompts * self.samples
        batch = self.train_batch_sequences or sequences * self.epochs
        critic = load_model(self.critic) if self.critic else policy if with_critic else None
        return PostTraining(
            model=policy,
            prompts=self.prompts,
            samples=self.samples,
            prompt_tokens=self.prompt_tokens,
            lengths=self._lengths(),
            updates=updates_of(sequences, batch, self.epochs),
            epochs=self.epochs,
            reference=reference if self.reference == "auto" else self.reference == "yes",
            old_logprobs=self.old_logprobs == "trainer",
            critic=critic,
            reward_s=self.reward_s,
            dtype=self.dtype,
            rollout_precision=self.rollout_precision,
        )

    def _lengths(self) -> "ResponseLengths":
        from tangram_sim.post_training.lengths import lognormal, lognormal_capped, read_lengths

        if self.lengths is not None:
            return read_lengths(self.lengths, self.cap)
        if self.response_tokens > self.cap:
            raise BadInputError(
                f"`response_tokens={self.response_tokens:g}` is above `cap={self.cap}`: give a larger cap "
                "or a mean below it"
            )
        if self.capped_share is not None:
            return lognormal_capped(self.response_tokens, self.cap, self.capped_share)
        return lognormal(self.response_tokens, self.cap)


@described
@dataclass(frozen=True, slots=True)
class RlSetting:
    """How rollout and training run, and prices."""

    staleness: int = option(
        1,
        "Greatest age of a sequence that trains, in versions of the weights: 0 on-policy, 1 one step off, "
        "more: asynchronous.",
        least=0,
        most=64,
        basic=True,
        group=SEARCH,
    )
    placement: str = option(
        "any",
        "Where roles may be: any, colocated (the same GPUs by turns) or split.",
        choices=("any", "colocated", "split"),
        basic=True,
        group=SEARCH,
    )
    engine: str = option("vllm", "Rollout engine: vllm or sglang.", choices=("vllm", "sglang"), group=_POOLS)
    pack_tokens: int = option(
        16384, "Tokens of a rank's packed micro-batch.", unit="tokens", least=1, group=_POOLS
    )
    sync_method: str = option(
        "auto",
        "How weights reach the engines.",
        choices=("auto", "broadcast", "bucketed", "packed", "sharded", "delta", "gather"),
        group=_POOLS,
    )
    price: tuple[str, ...] = option(
        (), "USD an hour of one GPU, as GPU=USD; may be given several times.", group="Prices"
    )
    time_limit: float | None = option(
        None,
        "Seconds until the search ends with the best plan so far.",
        unit="seconds",
        above=0,
        group=LIMITS,
    )
    hardware: Hardware = field(default=Hardware(), metadata=part())

    @property
    def limit_s(self) -> float:
        """Seconds that a search may take."""
        return self.time_limit if self.time_limit is not None else float("inf")

    def problem(self, step: StepOptions, model: str, fleet: str, hwdb: "Hwdb") -> "RlProblem":
        """The placement problem. Raises BadInputError and UnknownNameError."""
        from tangram_sim.hwdb import load_cluster
        from tangram_sim.post_training.overheads import load_overheads
        from tangram_sim.rl_planners.problem import RlProblem

        return RlProblem(
            step.work(model),
            load_cluster(fleet, hwdb),
            hwdb,
            load_overheads(hwdb),
            self.staleness,
            self.placement,
            self.engine,
            self.pack_tokens,
            sync_method=self.sync_method,
        )

    def prices(self, hwdb: "Hwdb") -> "RlPrices":
        """Prices of GPUs. Raises BadInputError and UnknownNameError."""
        from tangram_sim.studies.rl_plan import prices_of

        return prices_of(hwdb, self.price)


class _OnFleet(Question):
    """A question about one model on one fleet."""

    __slots__ = ()
    model: str
    fleet: str
    step: StepOptions
    setting: RlSetting

    @property
    def problem(self) -> "RlProblem":
        """The placement problem that is asked about."""
        hwdb = self.setting.hardware.load()
        return self.setting.problem(self.step, self.model, self.fleet, hwdb)


_MODEL: dict[str, Any] = about("Model name, or a config.json.", positional="MODEL")
_FLEET: dict[str, Any] = about("The fleet: a name, a file, or H800x8:2+H20x8:4.", positional="FLEET")


@described
@dataclass(frozen=True, slots=True)
class RlPlanQuestion(_OnFleet):
    """Which GPUs generate and which train: the best placement, its bound, and the step over every ratio."""

    VERB: ClassVar[str] = "rl plan"

    model: str = field(metadata=_MODEL)
    fleet: str = field(metadata=_FLEET)
    step: StepOptions = field(default=StepOptions(), metadata=part())
    setting: RlSetting = field(default=RlSetting(), metadata=part())

    def answer(self) -> "RlPlanDocument":
        """The plan. Raises InfeasibleError where no placement fits."""
        from tangram_sim.planners.deadline import Deadline
        from tangram_sim.studies.rl_plan import searched_document

        problem = self.problem
        prices = self.setting.prices(problem.hwdb)
        return self.with_answer(searched_document(problem, prices, Deadline(self.setting.limit_s)))


@described
@dataclass(frozen=True, slots=True)
class RlCompareQuestion(_OnFleet):
    """The best placement beside other rules: colocated, fixed ratios, and those of papers."""

    VERB: ClassVar[str] = "rl compare"

    model: str = field(metadata=_MODEL)
    fleet: str = field(metadata=_FLEET)
    step: StepOptions = field(default=StepOptions(), metadata=part())
    setting: RlSetting = field(default=RlSetting(), metadata=part())

    def answer(self) -> "RlCompareDocument":
        """Steps by rule. Raises InfeasibleError where no placement fits."""
        from tangram_sim.planners.deadline import Deadline
        from tangram_sim.studies.rl_plan import compared

        return self.with_answer(compared(self.problem, Deadline(self.setting.limit_s)))


@described
@dataclass(frozen=True, slots=True)
class RlWhatIfQuestion(_OnFleet):
    """What more nodes would bring: the best step with each addition, and USD a million trained tokens."""

    VERB: ClassVar[str] = "rl what-if"

    model: str = field(metadata=_MODEL)
    fleet: str = field(metadata=_FLEET)
    add: tuple[str, ...] = option(
        (), "Nodes to add, e.g. H20x8:2; may be given several times.", basic=True, group="Additions"
    )
    step: StepOptions = field(default=StepOptions(), metadata=part())
    setting: RlSetting = field(default=RlSetting(), metadata=part())

    def __post_init__(self) -> None:
        """Raise BadInputError where nothing is to be added."""
        Question.__post_init__(self)
        if not self.add:
            raise BadInputError("`add=`: name the nodes to add, e.g. H20x8:2")

    def answer(self) -> "RlWhatIfDocument":
        """Additions, cheapest trained tokens first. Raises InfeasibleError where no placement fits."""
        from tangram_sim.planners.deadline import Deadline
        from tangram_sim.studies.rl_plan import what_if

        problem = self.problem
        prices = self.setting.prices(problem.hwdb)
        return self.with_answer(what_if(problem, self.add, prices, Deadline(self.setting.limit_s)))


@described
@dataclass(frozen=True, slots=True)
class RlPurchaseQuestion(_OnFleet):
    """Which nodes to rent beside a fleet: every number of each offer, by USD a million trained tokens."""

    VERB: ClassVar[str] = "rl purchase"

    model: str = field(metadata=_MODEL)
    fleet: str = field(metadata=_FLEET)
    offer: tuple[str, ...] = option(
        (), "Node on offer, e.g. H20x8; may be given several times.", basic=True, group="Additions"
    )
    most: int = option(4, "Most nodes of one offer.", least=1, most=64, basic=True, group="Additions")
    step: StepOptions = field(default=StepOptions(), metadata=part())
    setting: RlSetting = field(default=RlSetting(), metadata=part())

    def __post_init__(self) -> None:
        """Raise BadInputError where nothing is on offer."""
        Question.__post_init__(self)
        if not self.offer:
            raise BadInputError("`offer=`: name the nodes on offer, e.g. H20x8")

    def answer(self) -> "RlWhatIfDocument":
        """Additions, cheapest trained tokens first. Raises InfeasibleError where no placement fits."""
        from tangram_sim.planners.deadline import Deadline
        from tangram_sim.studies.rl_plan import what_if

        problem = self.problem
        numbers = [number for number in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if number <= self.most]
        added = [f"{node}:{number}" for node in self.offer for number in dict.fromkeys([*numbers, self.most])]
        prices = self.setting.prices(problem.hwdb)
        return self.with_answer(what_if(problem, added, prices, Deadline(self.setting.limit_s)))


@described
@dataclass(frozen=True, slots=True)
class RlEstimateQuestion(Question):
    """Seconds of a step, phase by phase, of pools and layouts that are given."""

    VERB: ClassVar[str] = "rl estimate"

    model: str = field(metadata=_MODEL)
    fleet: str = field(metadata=about("GPUs that train; a name, a file, or H800x8:2.", positional="FLEET"))
    rollout: str | None = option(
        None,
        "GPUs of rollout alone, e.g. H20x8:4.",
        unset="the training GPUs by turns (colocated)",
        basic=True,
        group=_POOLS,
    )
    tp: int = option(1, "Tensor-parallel degree of training.", least=1, most=64, group=_POOLS)
    pp: int = option(1, "Pipeline stages of training.", least=1, most=512, group=_POOLS)
    cp: int = option(1, "Context-parallel degree of training.", least=1, most=64, group=_POOLS)
    ep: int = option(1, "Expert-parallel degree of training.", least=1, most=512, group=_POOLS)
    recompute: str = option(
        "full", "Activation recomputation.", choices=("none", "selective", "full"), group=_POOLS
    )
    gen_tp: int = option(1, "Tensor-parallel degree of an engine.", least=1, most=64, group=_POOLS)
    gen_memory: float = option(
        0.6, "Share of GPU memory of an engine.", unit="a share", above=0, most=1, group=_POOLS
    )
    step: StepOptions = field(default=StepOptions(), metadata=part())
    setting: RlSetting = field(default=RlSetting(), metadata=part())

    def answer(self) -> "RlPlanDocument":
        """The step. Raises InfeasibleError, with the phase, where memory does not suffice."""
        from tangram_sim.planners.uniform.layouts import Uniform
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
        layout = Uniform(
            tp=self.tp, pp=self.pp, cp=self.cp, ep=self.ep, zero_stage=1, recompute=self.recompute
        )
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
        outcome = play_step(problem.work, plan, hwdb, overheads=problem.overheads)
        if not colocated:
            problem = replace(problem, fleet=self.setting.problem(self.step, self.model, whole, hwdb).fleet)
        return self.with_answer(plan_document(outcome, problem, self.setting.prices(hwdb), ()))


@described
@dataclass(frozen=True, slots=True)
class RlSimulateQuestion(Question):
    """A plan played with lengths drawn again and again: spread of the step, waiting, ages."""

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
        """Steps played. Raises BadInputError for files that hold no plan."""
        from tangram_sim.studies.rl_plan import plan_from, simulated

        asked, document = read_plan(self.plan)
        if self.response_tokens is not None:
            asked = replace(asked, step=replace(asked.step, response_tokens=self.response_tokens))
        problem = asked.problem
        plan = plan_from(document.decisions, problem)
        return self.with_answer(simulated(plan, problem, self.seeds, self.player, self.seed))


def read_plan(path: Path) -> tuple[RlPlanQuestion, "RlPlanDocument"]:
    """The question and the answer in a file of `rl plan -o`. Raises BadInputError for any other file."""
    from pydantic import ValidationError

    from tangram_sim.datafiles import read_json
    from tangram_sim.studies.rl_documents import RlPlanDocument

    try:
        document = RlPlanDocument.model_validate(read_json(path))
        asked = question_of(document.question or {}, str(path))
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, fault["loc"]))
        raise BadInputError(f"{path}: no plan of `tangram rl plan -o`: {where}: {fault['msg']}") from None
    if not isinstance(asked, RlPlanQuestion):
        raise BadInputError(f"{path}: an answer of {asked.VERB}; give one of `tangram rl plan -o`")
    return asked, document
