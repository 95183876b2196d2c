"""`--jobs N` for the ordinary enumeration: who answers changes nothing, a killed process loses nothing."""

import os
import pickle
import signal
import time
from pathlib import Path

import pytest

from tangram_sim.planners.api import Found, SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.engine import tangram
from tangram_sim.planners.tangram.enumeration import prefetch as asking
from tangram_sim.planners.tangram.enumeration.parallel import Pieces
from tangram_sim.planners.tangram.enumeration.prefetch import (
    PrefetchQueue,
    SliceQuestion,
    Subject,
    answer_piece,
)
from tests.planning import HWDB, Instance, Workshop, random_instance

pytest.importorskip("joblib")


def planned(instance: Instance, **wishes: object) -> Found:
    asked = SearchOptions(constraints=instance.constraints, top=3, **wishes)  # type: ignore[arg-type]  # named by tests
    return tangram(instance.model, instance.cluster, instance.job, HWDB, asked)


def deadly_piece(*given: object) -> object:
    """A piece whose process dies as if killed, the first time that one is worked on."""
    marker = Path(os.environ["TANGRAM_TEST_MARKER"])
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return answer_piece(*given)  # type: ignore[arg-type]  # handed through
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("the process goes on after SIGKILL")


def assert_same(result: Found, other: Found) -> None:
    """Plans, steps, bounds, counts and loads, to the last bit."""
    assert [scored.plan for scored in result.ranked] == [scored.plan for scored in other.ranked]
    assert [scored.step_s for scored in result.ranked] == [scored.step_s for scored in other.ranked]
    assert result.pipeline_bound_s == other.pipeline_bound_s
    assert (result.counts, result.loads, result.findings) == (other.counts, other.loads, other.findings)


@pytest.mark.slow
def test_two_processes_of_which_one_is_killed_give_the_same_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, stages on several islands included; after the death others go on."""
    instance = random_instance(1)
    monkeypatch.setenv("TANGRAM_TEST_MARKER", str(tmp_path / "killed"))
    monkeypatch.setattr(asking, "answer_piece", deadly_piece)
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True)  # new processes see the variable
    assert_same(planned(instance), planned(instance, jobs=2))
    assert (tmp_path / "killed").exists()


class Counted(Pieces):
    """Pieces that are run here, and counted."""

    def __init__(self) -> None:
        super().__init__(1)
        self.pieces: list[int] = []

    def run(self, work, questions):  # type: ignore[no-untyped-def]  # as the base class
        self.pieces += [len(question[1]) for question in questions]
        return super().run(work, questions)


def test_questions_are_answered_ahead_once_and_in_pieces_of_neighbours() -> None:
    """PrefetchQueue again for what is ready asks nothing; time that is up leaves questions to the asker."""
    workshop = Workshop(random_instance(4))
    instance = workshop.instance
    part = workshop.islands[0].part(1)
    questions = [SliceQuestion(part, 2, 0, stop, float("inf")) for stop in range(1, 5)]
    subject = Subject(instance.model, instance.job, HWDB, instance.constraints)
    pieces = Counted()
    ahead = PrefetchQueue(pieces, "grid", subject)
    ahead.ahead([*questions, *questions])
    assert sum(pieces.pieces) == len(questions) == len(ahead.ready)
    ahead.ahead(questions)
    assert sum(pieces.pieces) == len(questions)
    for question in questions:
        assert ahead.ready[question] == asking.answered_together(workshop.grid, subject, [question])[0]
    both = [*questions, *(item._replace(microbatch=4) for item in questions)]
    for least, count in ((1, 2), (2, 2), (3, 4), (100, 8)):
        made = asking.pieces_of(both, least)
        assert len(made) == count
        assert sorted(str(item) for piece in made for item in piece) == sorted(map(str, both))
        assert all(len({(item.part, item.microbatch) for item in piece}) == 1 for piece in made)
    # Sent off in time, taken up when it is over: as where other pieces come first, or a process is slow.
    queued = pickle.dumps((questions, Deadline(0.05)))
    time.sleep(0.06)
    assert asking.answer_piece(pickle.dumps(("grid", subject)), *pickle.loads(queued)) == []
    late = PrefetchQueue(Counted(), "grid", subject, deadline=Deadline(0.0))
    late.ahead(questions)
    assert not late.ready
