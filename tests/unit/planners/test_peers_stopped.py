"""Peers' planners once time is over, on more kinds of nodes than have orders that anybody can count."""

import pytest

from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.hwdb.cluster_file import cluster_from_dict
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.whole_cluster import CannotAnswerError
from tangram_sim.studies.comparison import OK, compare_planners, plan_with
from tangram_sim.training.job import Job

HWDB, JOB = Hwdb.load(), Job(16, 512)


@pytest.fixture
def stopped() -> Deadline:
    """Somebody pressed Ctrl-C before anything was asked."""
    deadline = Deadline()
    deadline.interrupted = True
    return deadline


@pytest.fixture(scope="module")
def many():
    """Fifteen kinds of nodes: they differ in their NICs."""
    node = {"count": 2, "gpu": "A100-SXM4-80GB", "gpus": 4, "intra_link": "NVLink3"}
    nodes = [node | {"nic_gbps": 10.0 * 1.5**number} for number in range(15)]
    return cluster_from_dict({"name": "many", "nodes": nodes}, HWDB, "x")


def test_metis_makes_no_order_of_kinds(stopped, many):
    """There are 1.3 trillion of fifteen; it went through them for groups that it had none of."""
    with pytest.raises(CannotAnswerError, match="stopped by hand"):
        plan_with("metis", load_model("gpt3-1.3b"), many, JOB, hwdb=HWDB, deadline=stopped)


def test_a_comparison_that_is_stopped_at_once_shows_a_plan(stopped, many):
    """Planners are asked until one has a plan, as after a limit; the others say why they have none."""
    answers = compare_planners(
        load_model("gpt3-1.3b"), many, JOB, ["metis", "tangram", "uniform"], hwdb=HWDB, deadline=stopped
    )
    assert [answer.status == OK for answer in answers] == [False, True, False]
    assert answers[2].reason == "not asked: stopped by hand"
