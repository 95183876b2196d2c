"""Inputs of goodput: failures as they affect a plan, checkpoints, replicas, speed without failures."""

from collections.abc import Mapping
from dataclasses import dataclass

from tangram_sim.reliability.checkpointing import Checkpointing, CheckpointTier, RecoveryTimes
from tangram_sim.reliability.failures import FailureModel, require_kinds
from tangram_sim.reliability.goodput import Struck


@dataclass(frozen=True, slots=True)
class FailureFreeRate:
    """Speed of the plan without failures, with its 90 % interval; zeros: no plan."""

    tokens_per_s: float = 0.0
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True, slots=True)
class GoodputSetting:
    """Failures, checkpoints and replicas that goodput follows from."""

    struck: tuple[Struck, ...]
    checkpointing: Checkpointing
    source: str
    replicas: int = 1
    lost_with_node: tuple[float, ...] = ()  # of the speed, with each node alone; empty: one replica of all
    nodes: int = 0
    repair_s: float = 0.0
    per_1000_node_days: float | None = None
    node_failures_per_s: float = 0.0


def setting_of_scalars(
    mtbf_s: float, checkpoint_s: float, downtime_s: float, recovery_s: float, save_s: float, period_s: float
) -> GoodputSetting:
    """A setting from scalars: every failure stops the job and restores from one checkpoint tier."""
    tier = CheckpointTier("checkpoint", checkpoint_s, save_s, 0.0, "all", period_s)
    return GoodputSetting(
        (Struck("failure", 1.0 / mtbf_s, "node", downtime_s, 0.0, recovery_s),),
        Checkpointing((tier,), RecoveryTimes(downtime_s, 0.0, recovery_s, 0.0)),
        f"given: one failure in {mtbf_s:g} s",
    )


def setting_of_model(
    model: FailureModel,
    nodes: Mapping[str, int],
    checkpointing: Checkpointing,
    replicas: int,
    lost_with_node: tuple[float, ...] = (),
) -> GoodputSetting:
    """A setting for a job on `nodes` by GPU kind under a failure model.

    `lost_with_node`: share of the speed lost with each of its nodes; empty: that of one replica.
    """
    require_kinds(model, nodes)
    recovery = checkpointing.recovery
    struck = tuple(
        Struck(
            failure.name,
            failure.rate_per_s(nodes),
            failure.takes,
            recovery.detect_s if failure.detect_s is None else failure.detect_s,
            recovery.allocate_s if failure.takes in ("node", "leaf") else 0.0,
            0.0 if failure.takes == "none" else recovery.init_s + recovery.warmup_s,
        )
        for failure in model.classes
    )
    taking = [f for f in model.classes if f.takes in ("node", "leaf") and f.rate_per_s(nodes) > 0]
    rate = sum(failure.rate_per_s(nodes) for failure in taking)
    repair = sum(f.rate_per_s(nodes) * f.repair_s for f in taking) / rate if rate else 0.0
    count = sum(nodes.values())
    return GoodputSetting(
        struck,
        checkpointing,
        model.source,
        replicas,
        lost_with_node,
        nodes=count,
        repair_s=repair,
        per_1000_node_days=model.per_1000_node_days(nodes),
        node_failures_per_s=rate,
    )
