"""The question of `tangram goodput`: a plan's speed under failures, checkpoints and recovery."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tangram_sim.errors import BadInputError
from tangram_sim.fields import described, option, part
from tangram_sim.questions.question import Question
from tangram_sim.questions.shared_fields import Hardware

if TYPE_CHECKING:
    from tangram_sim.reliability.checkpointing import Checkpointing
    from tangram_sim.reliability.failures import FailureModel
    from tangram_sim.studies.goodput_documents import GoodputDocument
    from tangram_sim.studies.goodput_settings import FailureFreeRate, GoodputSetting
    from tangram_sim.studies.planstate import PlanOnNodes

POLICIES = ("restart", "shrink")
ANSWER = "Interval, spares and event simulation"
_MORE: dict[str, Any] = {"group": "Failures and checkpoints"}
_BASIC: dict[str, Any] = {**_MORE, "basic": True}
_SECONDS: dict[str, Any] = {"unit": "seconds"}


def _presets() -> Iterable[str]:
    from tangram_sim.reliability.failures import presets

    return presets()


@described
@dataclass(frozen=True, slots=True)
class GoodputQuestion(Question):
    """Estimate the useful share of time under failures, the checkpoint period, gains per second saved."""

    VERB: ClassVar[str] = "goodput"

    plan: Path | None = option(
        None, "A file written by `tangram plan -o`; else `mtbf_s=`.", positional="[PLAN]"
    )
    failures: str | None = option(
        None,
        "A preset (llama3, rsc-1, rsc-2, ft-hsdp-32k) or a YAML file of classes.",
        suggested=_presets,
        unset="llama3, with a plan",
        **_BASIC,
    )
    checkpoint: Path | None = option(
        None, "A YAML file with checkpoint tiers and recovery times.", on_page=False, **_BASIC
    )
    mtbf_s: float | None = option(
        None,
        "Mean seconds between failures of the whole job.",
        above=0,
        example="36000",
        **_BASIC,
        **_SECONDS,
    )
    checkpoint_s: float | None = option(
        None,
        "Seconds a checkpoint blocks.",
        least=0,
        example="60",
        unset="from the plan's bytes at 1 GB/s a node",
        **_BASIC,
        **_SECONDS,
    )
    save_s: float = option(
        0.0, "Seconds until a checkpoint can be restored from.", least=0, example="60", **_MORE, **_SECONDS
    )
    downtime_s: float = option(
        0.0, "Seconds after a failure in which none strikes.", least=0, example="60", **_BASIC, **_SECONDS
    )
    recovery_s: float = option(
        0.0, "Seconds of restart, struck like work.", least=0, example="300", **_BASIC, **_SECONDS
    )
    period_s: float | None = option(
        None, "Seconds between checkpoints.", above=0, example="1800", unset="the best", **_BASIC, **_SECONDS
    )
    policy: str = option(
        "restart",
        "restart, or shrink: go on without the broken replica.",
        choices=POLICIES,
        hint="`tangram train replay` plays the others on a trace.",
        **_BASIC,
    )
    days: float = option(
        30.0, "Days that the interval is for.", unit="days", above=0, example="60", basic=True, group=ANSWER
    )
    quantile: float = option(
        0.99,
        "Spares are enough with this probability.",
        unit="a probability",
        above=0,
        below=1,
        example="0.99",
        group=ANSWER,
    )
    sample: int = option(0, "Failures to play in the event simulation.", least=0, on_page=False, group=ANSWER)
    seed: int = option(0, "Of the event simulation.", least=0, on_page=False, group=ANSWER)
    hardware: Hardware = field(default=Hardware(), metadata=part())

    def __post_init__(self) -> None:
        """Raise BadInputError or UnknownNameError for fields that are invalid or contradict each other."""
        Question.__post_init__(self)
        if self.checkpoint is not None and self.checkpoint_s is not None:
            raise BadInputError("give one of `checkpoint=FILE` and `checkpoint_s=SECONDS`")
        if self.failures is not None and self.mtbf_s is not None:
            raise BadInputError(
                "give one of `failures=NAME` (with a plan, whose nodes fail) and `mtbf_s=SECONDS`"
            )
        if self.plan is None and self.mtbf_s is None and self.failures is None:
            raise BadInputError("give PLAN, or `mtbf_s=SECONDS` and `checkpoint_s=SECONDS`")
        if self.plan is None and self.checkpoint_s is None and self.checkpoint is None:
            raise BadInputError("give `checkpoint_s=SECONDS` beside `mtbf_s=`, or PLAN, whose bytes count")
        if self.plan is None and (self.failures is not None or self.checkpoint is not None):
            raise BadInputError(
                "`failures=` and `checkpoint=` need a plan: its nodes fail, its bytes are saved; give PLAN, "
                "or `mtbf_s=` and `checkpoint_s=`"
            )

    def answer(self) -> "GoodputDocument":
        """Checkpoint periods, useful share, accounts, worth of constants and spares.

        Raises BadInputError for malformed files, InfeasibleError where a failure leaves no checkpoint to
        restore from.
        """
        from tangram_sim.studies.goodput import goodput_document
        from tangram_sim.studies.goodput_settings import FailureFreeRate, setting_of_scalars
        from tangram_sim.studies.usual_failures import ASSUMED_SECONDS

        assumed: list[str] = []
        if self.plan is None:
            setting, throughput = setting_of_scalars(self.mtbf_s or 0.0, *self._seconds), FailureFreeRate()
        else:
            setting, throughput = self._of_plan(self.plan)
            if self.checkpoint is None and self.checkpoint_s is None:
                assumed = [f"checkpoints and restarts are {ASSUMED_SECONDS}"]
        found = goodput_document(
            setting,
            throughput,
            policy=self.policy,
            window_days=self.days,
            quantile=self.quantile,
            sample=self.sample,
            seed=self.seed,
        )
        return self.with_answer(found.with_fields(notes=[*found.notes, *assumed]) if assumed else found)

    @property
    def _seconds(self) -> tuple[float, float, float, float, float]:
        """(seconds that a checkpoint blocks, of downtime, of recovery, of saving, of the period)."""
        period_s = math.nan if self.period_s is None else self.period_s
        return self.checkpoint_s or 0.0, self.downtime_s, self.recovery_s, self.save_s, period_s

    def _of_plan(self, path: Path) -> tuple["GoodputSetting", "FailureFreeRate"]:
        """(failures and checkpoints for a plan's nodes and bytes, its tokens/s without failures)."""
        from tangram_sim.studies.goodput_settings import FailureFreeRate, setting_of_model
        from tangram_sim.studies.planstate import plan_on_nodes

        found = plan_on_nodes(path, self.hardware.load())
        setting = setting_of_model(
            self._failures, found.nodes_by_gpu, self._saving(found), found.replicas, found.lost_with_node
        )
        document = found.document
        rate = document.tokens_per_s
        low = rate * document.step_s / document.step_s_high if document.step_s_high else rate
        high = rate * document.step_s / document.step_s_low if document.step_s_low else rate
        return setting, FailureFreeRate(rate, low, high)

    def _saving(self, found: "PlanOnNodes") -> "Checkpointing":
        from tangram_sim.reliability.checkpointing import (
            Checkpointing,
            CheckpointTier,
            RecoveryTimes,
            load_checkpointing,
        )
        from tangram_sim.studies.usual_failures import checkpoint_s, restart_s

        if self.checkpoint is not None:
            count = sum(found.nodes_by_gpu.values())
            mean_bytes = found.state.total_bytes / count
            step_s = found.document.step_s
            return load_checkpointing(self.checkpoint, count, mean_bytes, found.most_held_bytes, step_s)
        block, down, recovery, save, period = self._seconds
        if self.checkpoint_s is None:
            nodes = sum(found.nodes_by_gpu.values())
            block, recovery = checkpoint_s(found.document, nodes), restart_s(found.document, nodes)
        tier = CheckpointTier("checkpoint", block, save, 0.0, "all", period)
        return Checkpointing((tier,), RecoveryTimes(down, 0.0, recovery, 0.0))

    @property
    def _failures(self) -> "FailureModel":
        from tangram_sim.reliability.failures import FailureClass, FailureModel, load_failures
        from tangram_sim.studies.usual_failures import PRESET

        if self.mtbf_s is None:
            return load_failures(self.failures or PRESET)
        mtbf_s = self.mtbf_s
        failure = FailureClass("failure", "node", 0.0, 1.0 / mtbf_s)
        return FailureModel("given", (failure,), f"given: one failure in {mtbf_s:g} s")
