"""Questions of an enumeration, answered by a parallelizer in several processes before they are needed.

An answer depends on its question alone, so the number of processes decides only where it is computed.
Questions of a process that dies are answered by the caller (`parallel`).
"""

import gc
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from multiprocessing import parent_process
from typing import NamedTuple

from tangram_sim.clusters import Island
from tangram_sim.hwdb import Hwdb
from tangram_sim.layers.atoms import Slice
from tangram_sim.models import Model
from tangram_sim.parallelizers.api import Answer, Constraints, Parallelizer, Request
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.enumeration.parallel import Pieces
from tangram_sim.registry import parallelizer as parallelizer_named
from tangram_sim.training.job import Job

TOGETHER = 64  # questions put to a parallelizer at once; between two batches the deadline is looked at
PIECES_EACH = 2  # per process, at least: pieces are of unequal length


@dataclass(frozen=True, slots=True)
class Subject:
    """Model, job, hardware data and constraints that all requests of an enumeration share."""

    model: Model
    job: Job
    hwdb: Hwdb
    constraints: Constraints


class SliceQuestion(NamedTuple):
    """A request for partial plans of atoms [start, stop) on a part of an island; see `Request`."""

    part: Island
    microbatch: int
    start: int
    stop: int
    pace_s: float

    def request(self, subject: Subject, sizes: tuple[int, ...] = ()) -> Request:
        """The question as a `Request` to a parallelizer; `sizes` are microbatches to be requested later."""
        return Request(
            slice=Slice(subject.model, self.start, self.stop),
            island=self.part,
            job=subject.job,
            microbatch=self.microbatch,
            microbatches=subject.job.global_batch // self.microbatch,
            hwdb=subject.hwdb,
            constraints=subject.constraints,
            pace_s=self.pace_s,
            sizes=sizes,
        )


def answered_together(
    parallelizer: Parallelizer,
    subject: Subject,
    questions: Sequence[SliceQuestion],
    sizes: tuple[int, ...] = (),
) -> list[Answer]:
    """Answers about slices on one part with one microbatch and one pace; `sizes` will be requested later.

    Rejected layouts are dropped from the answers, since they keep all prices of their island in memory.
    """
    given = parallelizer.parallelize_many([question.request(subject, sizes) for question in questions])
    return [replace(answer, rejected=()) for answer in given]


@lru_cache(maxsize=2)
def _opened(sealed: bytes) -> tuple[Parallelizer, Subject]:
    """The parallelizer and subject of a worker process, cached so that prices serve the next piece."""
    name, subject = pickle.loads(sealed)
    return parallelizer_named(name)(), subject


def answer_piece(sealed: bytes, questions: Sequence[SliceQuestion], deadline: Deadline) -> list[Answer]:
    """Answers in order until the deadline passes: one piece of work, for any process or machine."""
    parallelizer, subject = _opened(sealed)
    found: list[Answer] = []
    for first in range(0, len(questions), TOGETHER):
        if deadline.over():
            break
        found += answered_together(parallelizer, subject, questions[first : first + TOGETHER])
    if parent_process() is not None:
        # What this process has priced serves the next pieces; joblib's workers walk all of it every second in
        # search of garbage, unless it is set apart.
        gc.freeze()
    return found


def pieces_of(questions: Sequence[SliceQuestion], least: int) -> list[list[SliceQuestion]]:
    """Questions grouped by part and microbatch size, which share prices; longest group first.

    Groups are cut only if there would be fewer than `least`; the order keeps processes from ending late.
    """
    together: dict[tuple[Island, int], list[SliceQuestion]] = {}
    for question in questions:
        together.setdefault((question.part, question.microbatch), []).append(question)
    cuts = -(-least // max(len(together), 1))
    found = []
    for alike in together.values():
        each = -(-len(alike) // cuts)
        found += [alike[first : first + each] for first in range(0, len(alike), each)]
    return sorted(found, key=lambda piece: -len(piece) * piece[0].part.gpus)


@dataclass
class PrefetchQueue:
    """Has the parallelizer `name` answer questions in the processes of `pieces` before they are needed."""

    pieces: Pieces
    name: str
    subject: Subject
    deadline: Deadline = field(default_factory=Deadline)
    ready: dict[SliceQuestion, Answer] = field(default_factory=dict)
    _sealed: bytes = b""

    def ahead(self, questions: Sequence[SliceQuestion]) -> None:
        """Answer all questions and keep the answers until they are used; neighbours go to one process."""
        self._sealed = self._sealed or pickle.dumps((self.name, self.subject))
        open_ones = [fromkey for fromkey in dict.fromkeys(questions) if fromkey not in self.ready]
        chunks = pieces_of(open_ones, PIECES_EACH * self.pieces.processes)
        found = self.pieces.run(answer_piece, [(self._sealed, chunk, self.deadline) for chunk in chunks])
        for chunk, answers in zip(chunks, found, strict=True):
            self.ready.update(zip(chunk, answers, strict=False))  # shorter where time was up
