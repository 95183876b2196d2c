"""Pieces of a search on several processes or machines: joblib, whose backend the caller may set (loky, Dask).

A piece is a function of a module with its arguments; a worker that dies loses nothing: the pieces it had not
answered are run again here.
"""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar

from tangram_sim.errors import BadInputError
from tangram_sim.workers import ending_with_parent, worker_deaths

Answer = TypeVar("Answer")


class Pieces:
    """Runs pieces of work in one process (without joblib) or several; results keep the questions' order."""

    def __init__(self, jobs: int = 1) -> None:
        if jobs < 0:
            raise BadInputError(f"`jobs={jobs}`: give a number of processes, or 0 for all cores")
        if jobs != 1 and find_spec("joblib") is None:
            raise BadInputError(f'`jobs={jobs}` needs joblib: pip install "tangram-sim[sweep]"')
        self.jobs = jobs or -1
        self.repeated = 0  # pieces whose worker died

    @property
    def processes(self) -> int:
        """Number of worker processes."""
        if self.jobs == 1:
            return 1
        from joblib import effective_n_jobs

        return int(effective_n_jobs(self.jobs))

    def run(
        self,
        work: Callable[..., Answer],
        questions: Sequence[tuple[Any, ...]],
        answered: Callable[[int], None] = lambda _: None,
    ) -> list[Answer]:
        """`work(*question)` for every question; `answered` is called with the number of answers so far.

        Errors of the work itself are raised.
        """
        if self.jobs == 1 or len(questions) < 2:
            done: list[Answer] = []
            for question in questions:
                done.append(work(*question))
                answered(len(done))
            return done
        from joblib import Parallel, delayed

        found: dict[int, Answer] = {}
        try:
            with ending_with_parent():
                parallel = Parallel(n_jobs=self.jobs, return_as="generator_unordered", batch_size=1)
                answers = parallel(
                    delayed(_numbered)(work, number, question) for number, question in enumerate(questions)
                )
            for number, answer in answers:
                found[number] = answer
                answered(len(found))
        except worker_deaths():  # what the dead had not answered is made here
            missing = [number for number in range(len(questions)) if number not in found]
            self.repeated += len(missing)
            for number in missing:
                found[number] = work(*questions[number])
        return [found[number] for number in range(len(questions))]


def _numbered(work: Callable[..., Answer], number: int, question: tuple[Any, ...]) -> tuple[int, Answer]:
    """(number, answer) of one piece, since answers come back in any order."""
    return number, work(*question)
