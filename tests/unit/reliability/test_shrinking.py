"""Going on without broken replicas: what a loss takes, and when nothing whole is left."""

from dataclasses import replace

import pytest

from tangram_sim.errors import InfeasibleError
from tangram_sim.reliability.checkpointing import Checkpointing, CheckpointTier, RecoveryTimes
from tangram_sim.reliability.goodput import Struck
from tangram_sim.studies.goodput import goodput_document
from tangram_sim.studies.goodput_settings import FailureFreeRate, GoodputSetting


def test_shrinking_loses_what_has_a_part_on_the_node_and_needs_a_whole_replica_left() -> None:
    tiers = Checkpointing((CheckpointTier("file system", 1.0),), RecoveryTimes())
    struck = (
        Struck("node", 1e-6, "node", 0.0, 3600.0, 0.0),
        Struck("rank", 1e-6, "process", 0.0, 3600.0, 0.0),
    )
    for lost, share in (((0.5, 0.5), 0.5), ((0.25, 0.75), 0.5), ((), 1 / 16)):
        question = GoodputSetting(struck, tiers, "made up", replicas=16, lost_with_node=lost)
        found = goodput_document(question, FailureFreeRate(), policy="shrink")
        assert found.accounts["degraded"] == pytest.approx(3600e-6 * (share + 1 / 16))
    question = GoodputSetting(struck, tiers, "made up", replicas=16, lost_with_node=(0.5, 1.0))
    with pytest.raises(InfeasibleError, match="1 of the plan's 2 nodes hold a part of every replica"):
        goodput_document(question, FailureFreeRate(), policy="shrink")
    for harmless in (struck[1:], (replace(struck[0], rate_per_s=0.0),)):  # no node is ever lost
        found = goodput_document(replace(question, struck=harmless), FailureFreeRate(), policy="shrink")
        assert found.goodput > 0.99
    power = replace(
        question, struck=(Struck("power", 1e-6, "all", 0.0, 3600.0, 0.0),), lost_with_node=(0.5, 0.5)
    )
    found = goodput_document(power, FailureFreeRate(), policy="shrink")
    assert found.accounts["degraded"] == pytest.approx(3600e-6)
