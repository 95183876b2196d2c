"""Plans of post-training: pools of GPUs, their layouts, and when weights are synchronised."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from tangram_sim.clusters import Cluster
from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.planners.uniform.layouts import Uniform

COLOCATED, SPLIT, HYBRID = "colocated", "split", "hybrid"
SYNC, ONE_STEP_OFF, ASYNC = "sync", "one-step-off", "async"
MODES = (SYNC, ONE_STEP_OFF, ASYNC)
# What becomes of running requests at a weight sync: waited for, kept with their KV, or prefilled again.
DRAIN, IN_FLIGHT, PARTIAL = "drain", "in-flight", "partial"
AT_SYNC = (DRAIN, IN_FLIGHT, PARTIAL)
Degree = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True)
class TrainingPool:
    """The GPUs that update the policy, all of `cluster`, under one uniform layout.

    `pack_tokens`: tokens of one packed micro-batch of a rank; 0: sequences are padded to `padded_tokens`,
    `layout.micro_batch` of them at a time. `offload`: weights, gradients and optimizer state are kept in host
    memory while the same GPUs generate.
    """

    cluster: Cluster
    layout: Uniform
    pack_tokens: int = 0
    padded_tokens: int = 0
    stack: str = "megatron"
    offload: bool = False
    logprob_tokens: int = 0  # of one micro-batch of a forward-only pass; 0: as `pack_tokens`

    @property
    def gpus(self) -> int:
        """Number of GPUs in the pool."""
        return self.cluster.gpus

    @property
    def dp(self) -> int:
        """Data-parallel degree: the given one, or as many replicas as the GPUs hold."""
        uniform = self.layout
        return uniform.dp or max(self.gpus // (uniform.tp * uniform.pp * uniform.cp), 1)


@dataclass(frozen=True, slots=True)
class RolloutReplicas:
    """`count` identical replicas of an engine on GPUs of one kind.

    `ep` spreads experts over that many ranks; `attention_dp` splits requests over groups that share experts.
    """

    gpu: str
    count: Degree
    tp: Degree = 1
    pp: Degree = 1
    ep: Degree = 1
    attention_dp: Degree = 1
    engine: str = "vllm"
    memory_fraction: Annotated[
        float, Field(ge=0, le=1, description="of the card; 0: the engine's default")
    ] = 0.0
    max_sequences: Annotated[int, Field(ge=0, description="at a time; 0: the engine's default")] = 0
    eager: Annotated[bool, Field(description="kernels are launched one by one, no graph is captured")] = False

    @property
    def gpus(self) -> int:
        """Number of GPUs of all these replicas."""
        return self.count * self.tp * self.pp * self.attention_dp


@dataclass(frozen=True, slots=True)
class Mode:
    """Rules for when the next generation may begin, and for running requests at a weight sync.

    `eta`: greatest age in versions that a sequence may have when it is trained on (asynchronous mode).
    `share`: limit on groups begun beyond a step's own, as a fraction of these, instead of `eta` (None: use
    `eta`). The trainer takes a step's groups in `fetches` equal portions, each as soon as it is complete.
    """

    kind: str = SYNC
    eta: int = 0
    share: float | None = None
    at_sync: str = IN_FLIGHT
    fetches: int = 1

    def __post_init__(self) -> None:
        """Raise UnknownNameError or BadInputError for invalid modes."""
        if self.kind not in MODES:
            raise unknown_name("mode", self.kind, MODES)
        if self.at_sync not in AT_SYNC:
            raise unknown_name("way to synchronise", self.at_sync, AT_SYNC)
        if self.eta < 0 or (self.share is not None and self.share < 0):
            raise BadInputError(f"staleness {self.eta if self.share is None else self.share}: give 0 or more")

    def may_begin(self, prompts: int, version: int, begun: int, left: int) -> int:
        """Number of groups that may begin after sync `version`; `begun` so far, `left` of them unused.

        By version: (version + eta + 1) x prompts in total. By share: (1 + share) x prompts between two syncs,
        including those left over.
        """
        if self.share is None:
            return max((version + self.eta + 1) * prompts - begun, 0)
        return max(int((1 + self.share) * prompts) - left, 0)


@dataclass(frozen=True, slots=True)
class RlPlan:
    """A placement of roles: which GPUs train, which generate, and in which mode.

    In a colocated plan the same GPUs take turns in both roles. In a hybrid plan the training GPUs also
    generate, with the replicas `lent`, whenever they do not train; `rollout` is on GPUs of its own.
    `sync_method` is a name in `sync.METHODS`.
    """

    training: TrainingPool
    rollout: tuple[RolloutReplicas, ...]
    placement: str = COLOCATED
    mode: Mode = Mode()
    sync_method: str = "auto"
    dispatch: str = "even"
    lent: tuple[RolloutReplicas, ...] = ()

    def __post_init__(self) -> None:
        """Raise BadInputError for inconsistent pools."""
        if self.placement not in (COLOCATED, SPLIT, HYBRID):
            raise unknown_name("placement", self.placement, (COLOCATED, SPLIT, HYBRID))
        if bool(self.lent) != (self.placement == HYBRID):
            raise BadInputError(
                "replicas on training GPUs beside replicas of their own (`lent`) are what makes a plan hybrid"
            )
        if self.lent and self.mode.kind == ASYNC:
            raise BadInputError("training GPUs are lent step by step: give a mode of sync or one-step-off")
        if not self.rollout or any(rollout_replicas.count < 1 for rollout_replicas in self.rollout):
            raise BadInputError("a plan needs at least one rollout replica")
        if self.placement == COLOCATED and self.mode.kind != SYNC:
            raise BadInputError(
                f"a {self.mode.kind} plan needs GPUs of its own for rollout: give `placement=split`, or "
                "`staleness=0`"
            )

    @property
    def rollout_gpus(self) -> int:
        """Number of GPUs that generate and do not train; in colocated plans of those that do both."""
        return sum(rollout_replicas.gpus for rollout_replicas in self.rollout)

    @property
    def switches(self) -> bool:
        """Whether GPUs switch between training and rollout."""
        return self.placement in (COLOCATED, HYBRID)

    @property
    def gpus(self) -> int:
        """Number of GPUs in the plan, each counted once."""
        if self.placement == COLOCATED:
            return max(self.training.gpus, self.rollout_gpus)
        return self.training.gpus + self.rollout_gpus
