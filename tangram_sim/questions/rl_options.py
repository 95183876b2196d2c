"""Fields that the questions of `tangram rl` share: the step, and settings of rollout and training."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.fields import LIMITS, SEARCH, described, option, part
from tangram_sim.questions.gpu_prices import price_option, usd_by_gpu
from tangram_sim.questions.shared_fields import Hardware

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.post_training.lengths import ResponseLengths
    from tangram_sim.post_training.workload import PostTraining
    from tangram_sim.rl_planners.problem import RlProblem
    from tangram_sim.studies.rl_plan import RlPrices

# Algorithm -> which passes it has beside the policy's update: (reference, critic).
ALGORITHMS = {"grpo": (True, False), "ppo": (True, True), "dapo": (False, False)}
YES_NO = ("auto", "yes", "no")
_STEP: dict[str, Any] = {"group": "Step"}
_BASIC: dict[str, Any] = {**_STEP, "basic": True}
POOLS = "Pools"


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
        "A file of observed response lengths, one number a line: drawn from instead, up to the longest "
        "unless another cap is given.",
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
        """The post-training step for this model. Raises BadInputError and UnknownNameError."""
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
            usual = StepOptions()
            if self.response_tokens != usual.response_tokens or self.capped_share is not None:
                raise BadInputError(
                    "`lengths=`: the file says how long responses are; give it without `response_tokens=` "
                    "and `capped_share=`"
                )
            return read_lengths(self.lengths, 0 if self.cap == usual.cap else self.cap)
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
    """Settings of rollout and training, and prices."""

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
        "Where roles may be: any, colocated (the same GPUs by turns), split, or hybrid (training GPUs "
        "generate, too, beside nodes that only generate).",
        choices=("any", "colocated", "split", "hybrid"),
        basic=True,
        group=SEARCH,
    )
    engine: str = option("vllm", "Rollout engine: vllm or sglang.", choices=("vllm", "sglang"), group=POOLS)
    pack_tokens: int = option(
        16384, "Tokens of a rank's packed micro-batch.", unit="tokens", least=1, group=POOLS
    )
    sync_method: str = option(
        "auto",
        "How weights reach the engines.",
        choices=("auto", "broadcast", "bucketed", "packed", "sharded", "delta", "gather", "gathered"),
        group=POOLS,
    )
    price: tuple[str, ...] = price_option()
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
        """Time limit of the search in seconds; infinite by default."""
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
            placement=self.placement,
            engine=self.engine,
            pack_tokens=self.pack_tokens,
            sync_method=self.sync_method,
        )

    def prices(self, problem: "RlProblem", *more: str) -> "RlPrices":
        """Prices of the GPUs of a problem, and of further fleets `more`.

        Raises BadInputError, UnknownNameError for a GPU that is in none of them.
        """
        from tangram_sim.hwdb import load_cluster
        from tangram_sim.studies.rl_plan import RlPrices, kinds_of

        hwdb = problem.hwdb
        fleets = [problem.fleet, *(load_cluster(each, hwdb) for each in more if self.price)]
        kinds = {kind for each in fleets for kind in kinds_of(each)}
        return RlPrices(hwdb, usd_by_gpu(self.price, kinds, hwdb))
