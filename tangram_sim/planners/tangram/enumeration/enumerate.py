"""Requests partial plans for every relevant (slice, part of an island), and caches them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Island
from tangram_sim.hwdb import Hwdb
from tangram_sim.layers.atoms import atoms_of
from tangram_sim.models import Block, Model
from tangram_sim.parallelizers.api import Answer, Constraints, Parallelizer
from tangram_sim.planners.api import POLICIES, Candidate, Counts
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.bound import WorkBound
from tangram_sim.planners.tangram.enumeration.prefetch import (
    TOGETHER,
    PrefetchQueue,
    SliceQuestion,
    Subject,
    answered_together,
)
from tangram_sim.planners.tangram.enumeration.table import (
    Beside,
    Options,
    PartialPlanTable,
    slice_classes,
    tabulate,
)
from tangram_sim.planners.tangram.told_apart import in_units
from tangram_sim.training.job import Job
from tangram_sim.training.plan import UNLIMITED, PartialPlan
from tangram_sim.training.schedules import puts_off_weights

Floats: TypeAlias = NDArray[np.float64]
Grain: TypeAlias = Sequence[Sequence[int]]  # nodes of the parts that are asked about, by island


@dataclass
class Enumeration:
    """Requests partial plans of all slice classes on all parts of islands, except those that are pruned.

    Policies: redundancy (equal signature on an equivalent island: requested once), infeasibility (the slice's
    weights, gradients and optimizer state exceed the part's memory), imbalance (no plan with this pair can
    beat the best known one: a valid bound), incompatibility (partial plans too slow for any pipeline below
    the limit, or dominated wherever they could stand, are dropped). A `window` above 0 also drops pairs whose
    load leaves [1/window, window]; `lost` bounds what that may cost.
    """

    model: Model
    job: Job
    islands: Sequence[Island]
    parallelizer: Parallelizer
    constraints: Constraints
    hwdb: Hwdb
    bound: WorkBound
    counts: Counts
    record: list[Candidate] | None = None
    tied_s: float = 0.0
    policies: Sequence[str] = POLICIES
    window: float = 0.0
    loads: list[float] = field(default_factory=list)  # of the pairs asked about
    widest: int = 1 << 30  # units of the widest stage asked about
    deadline: Deadline = field(default_factory=Deadline)  # over: no further questions, what is known must do
    asking: PrefetchQueue | None = None  # the parallelizer in several processes
    passage_s: float = 0.0  # of one microbatch through the pipeline, at least (closed objective)
    priced: int = 0  # layouts that parallelizers have looked at, of all questions
    sizes: tuple[int, ...] = ()  # microbatches that tables are made for, as far as known
    joint: bool = False  # stages on several islands, too: what the rest costs is known for single ones alone
    _parts: dict[Island, int] = field(default_factory=dict)  # equal parts of different islands are one
    # By (part, class, microbatch): the pace asked with, and the answer.
    _answers: dict[tuple[int, int, int], tuple[float, Answer]] = field(default_factory=dict)
    _ready: dict[SliceQuestion, Answer] = field(default_factory=dict)  # answered ahead, not taken yet
    _pruned: dict[tuple[int, int, int], str] = field(default_factory=dict)
    _visited: set[tuple[int, int, int]] = field(default_factory=set)  # (part, kind, microbatch)
    _outside_s: float = float("inf")  # least bound of a pair that only the window left out
    _least: dict[tuple[int, int], Floats] = field(default_factory=dict)  # by (part, microbatch): see `_own`
    _tight: dict[tuple[int, tuple[int, ...]], WorkBound] = field(default_factory=dict)

    def table(
        self,
        microbatch: int,
        limit_s: float,
        units: Sequence[int],
        beside: Beside | None = None,
        grain: Grain | None = None,
    ) -> PartialPlanTable:
        """Partial plans for one microbatch size, except for pairs that cannot beat `limit_s`.

        Islands are divided into groups of `units[kind]` nodes; with `grain`, only parts of these node counts
        are used. `beside` adds partial plans on joint islands.
        """
        firsts, classes = slice_classes(self.model)
        pairs = sum(entry >= 0 for row in classes for entry in row)
        options: Options = [[] for _ in firsts]
        parts = list(self._parts_by(units, grain))
        rest, pace_s = self._bound(microbatch, parts), self._pace_s(microbatch, limit_s)
        if self.asking is not None:
            self._ask_ahead(parts, microbatch, limit_s, rest)
        for kind, number, part in parts:
            if self.deadline.over():
                break
            if "redundancy" in self.policies and (number, kind, microbatch) not in self._visited:
                known = any(
                    (number, other, microbatch) in self._visited for other in range(len(self.islands))
                )
                self.counts.redundant += pairs if known else pairs - len(firsts)
                self._visited.add((number, kind, microbatch))
            self._ask_open(number, kind, part, microbatch, limit_s, rest)
            for group in range(len(firsts)):
                key = (number, group, microbatch)
                if key not in self._pruned and key in self._answers:
                    partials = self._answers[key][1].partials
                    options[group] += [
                        (kind, partial_plan) for partial_plan in partials if partial_plan.slowest_s <= pace_s
                    ]
        if beside is None:
            return self._tabulate(microbatch, options, units)
        for group, joint, partial in beside.partials:
            options[group].append((len(self.islands) + joint, partial))
        found = self._tabulate(microbatch, options, [*units, *[1] * len(beside.nodes)])
        return replace(found, joint=beside.nodes)

    def _tabulate(self, microbatch: int, options: Options, units: Sequence[int]) -> PartialPlanTable:
        dropping = "incompatibility" in self.policies
        return tabulate(self.model, self.job, microbatch, options, units, self.tied_s, dropping=dropping)

    def least_s(self, microbatch: int, units: Sequence[int], grain: Grain | None = None) -> float:
        """Lower bound in seconds on a step of one pipeline over these parts with this microbatch size."""
        bound = self._bound(microbatch, list(self._parts_by(units, grain)))
        # Where weight gradients are put off no law of pipelines holds.
        whole = puts_off_weights(self.job.schedule)
        return bound.microbatch_s(microbatch) if whole else bound.pipeline_s(microbatch)

    def _parts_by(self, units: Sequence[int], grain: Grain | None) -> Iterator[tuple[int, int, Island]]:
        """(kind, number, part) in steps of `units[kind]` nodes of an island; equal parts share a number."""
        for kind, island in enumerate(self.islands):
            for nodes in grain[kind] if grain else in_units(island.nodes, units[kind])[: self.widest]:
                part = island.part(nodes).anonymous()
                if "redundancy" not in self.policies:
                    part = replace(part, name=f"{part.name} of {island.name}")
                yield kind, self._parts.setdefault(part, len(self._parts)), part

    def _bound(self, microbatch: int, parts: Sequence[tuple[int, int, Island]]) -> WorkBound:
        """The work bound of the islands, tightened by the parallelizer's lower bounds for these parts.

        Those bounds hold only for stages on one island each.
        """
        key = microbatch, tuple(number for _, number, _ in parts)
        if self.joint or "imbalance" not in self.policies:
            return self.bound
        if key not in self._tight:
            least = np.full(self.bound.seconds.shape, np.inf)
            for kind, number, part in parts:
                least[kind] = np.minimum(least[kind], np.diff(self._own(number, part, microbatch)))
            self._tight[key] = self.bound.tightened(np.where(np.isfinite(least), least, 0.0))
        return self._tight[key]

    def _own(self, number: int, part: Island, microbatch: int) -> Floats:
        """Prefix sums over atoms [0, i) of the least GPU-seconds per sequence on a part, 0 if unknown."""
        key = number, microbatch
        if key not in self._least:
            atoms = self.model.layers + 2
            least = np.zeros(atoms)
            if "imbalance" in self.policies and not self.deadline.over():
                question = SliceQuestion(part, microbatch, 0, atoms, float("inf"))
                least = self.parallelizer.least_seconds(question.request(self._subject, self.sizes))
            self._least[key] = np.concatenate([[0.0], np.cumsum(least)])
        return self._least[key]

    @cached_property
    def _subject(self) -> Subject:
        return Subject(self.model, self.job, self.hwdb, self.constraints)

    def _ask_ahead(
        self, parts: Sequence[tuple[int, int, Island]], microbatch: int, limit_s: float, rest: WorkBound
    ) -> None:
        """Let other processes answer all requests that a table is about to make."""
        firsts, _ = slice_classes(self.model)
        pace_s, work_s = self._asked_pace_s(microbatch, limit_s), self._work_s(microbatch, limit_s)
        self.ahead(
            SliceQuestion(part, microbatch, start, stop, pace_s)
            for kind, number, part in parts
            for (start, stop), least_s in zip(
                firsts, self._least_of(number, kind, part, microbatch, rest).tolist(), strict=True
            )
            if not self._reason(kind, part, start, stop, work_s, least_s)
        )

    def ahead(self, questions: Iterable[SliceQuestion], later: Iterable[SliceQuestion] = ()) -> None:
        """Fetch the answers to these requests that are not known, in other processes if there are any.
        Requests about one part are sent together. Microbatch sizes that a part will be asked about `later`
        are priced with its own."""
        _, classes = slice_classes(self.model)

        def known(one: SliceQuestion) -> bool:
            key = self._parts.get(one.part, -1), classes[one.start][one.stop], one.microbatch
            return key in self._answers and self._answers[key][0] >= one.pace_s

        wanted = dict.fromkeys(question for question in questions if not known(question))
        if self.asking is not None:
            self.asking.ahead(list(wanted))
            return
        together: dict[tuple[Island, int], list[SliceQuestion]] = {}
        for item in wanted:
            if item not in self._ready:
                together.setdefault((item.part, item.microbatch), []).append(item)
        sizes = self._new_sizes([*wanted, *later])
        for (part, _), alike in together.items():
            for first in range(0, len(alike), TOGETHER):
                if self.deadline.over():
                    return
                some = alike[first : first + TOGETHER]
                answers = answered_together(self.parallelizer, self._subject, some, sizes[part])
                self._ready.update(zip(some, answers, strict=True))

    def _new_sizes(self, questions: Iterable[SliceQuestion]) -> dict[Island, tuple[int, ...]]:
        """New microbatch sizes of these requests, by part: those that the part has not been asked about."""
        asked = {(number, microbatch) for number, _, microbatch in self._answers}
        found: dict[Island, set[int]] = {}
        for question in questions:
            sizes = found.setdefault(question.part, set())
            if (self._parts.get(question.part, -1), question.microbatch) not in asked:
                sizes.add(question.microbatch)
        return {part: tuple(sorted(sizes)) for part, sizes in found.items()}

    def _asked_pace_s(self, microbatch: int, limit_s: float) -> float:
        """Limit in seconds per microbatch that the parallelizer is given; inf if it makes no use of it."""
        return self._pace_s(microbatch, limit_s) if self.parallelizer.heeds_pace else float("inf")

    def _pace_s(self, microbatch: int, limit_s: float) -> float:
        """Most seconds per microbatch of any stage in a plan below the limit."""
        if "incompatibility" not in self.policies:
            return float("inf")
        return self._work_s(microbatch, limit_s) / (self.job.global_batch // microbatch)

    def _work_s(self, microbatch: int, limit_s: float) -> float:
        """Most seconds of m microbatches on the slowest stage: min(limit, (limit - passage) m / (m - 1))."""
        microbatches = self.job.global_batch // microbatch
        if microbatches == 1 or not self.passage_s:
            return limit_s
        return min(limit_s, max(limit_s - self.passage_s, 0.0) * microbatches / (microbatches - 1))

    def _ask_open(
        self, number: int, kind: int, part: Island, microbatch: int, limit_s: float, rest: WorkBound
    ) -> None:
        """Request partial plans of all slices on a part that are neither known nor pruned."""
        firsts, classes = slice_classes(self.model)
        pace_s, work_s = self._asked_pace_s(microbatch, limit_s), self._work_s(microbatch, limit_s)
        least_s = self._least_of(number, kind, part, microbatch, rest)
        questions = dict[tuple[int, int, int], SliceQuestion]()
        for group, (start, stop) in enumerate(firsts):
            key = (number, group, microbatch)
            if key in self._answers and self._answers[key][0] >= pace_s:
                self._pruned.pop(key, None)
                continue
            reason = self._reason(kind, part, start, stop, work_s, float(least_s[group]))
            if reason:
                self._pruned[key] = reason
                continue
            self._pruned.pop(key, None)
            self.loads.append(self.bound.load(start, stop, kind, part.gpus))
            questions[key] = SliceQuestion(part, microbatch, start, stop, pace_s)
        asked = list(questions.items())
        for first in range(0, len(asked), TOGETHER):
            if self.deadline.over():
                return
            some = asked[first : first + TOGETHER]
            answers = self._ask(self.islands[kind].name, [question for _, question in some], self.sizes)
            self._answers.update(
                (key, (pace_s, answer)) for (key, _), answer in zip(some, answers, strict=True)
            )
        if "redundancy" not in self.policies:
            for (_, group, _), question in asked:
                again = [
                    question._replace(start=first, stop=last)
                    for first, row in enumerate(classes)
                    for last, other in enumerate(row)
                    if other == group and first != question.start
                ]
                if again:
                    self._ask(self.islands[kind].name, again)

    def ask(self, kind: int, nodes: int, start: int, stop: int, microbatch: int) -> tuple[PartialPlan, ...]:
        """Partial plans without time limit for atoms like [start, stop) on nodes of an island; cached."""
        firsts, classes = slice_classes(self.model)
        group = classes[start][stop]
        part = self.islands[kind].part(nodes).anonymous()
        key = (self._parts.setdefault(part, len(self._parts)), group, microbatch)
        if key not in self._answers or self._answers[key][0] < float("inf"):
            if self.weights_bytes(start, stop) > part.gpus * part.gpu.memory_bytes:
                return ()
            question = SliceQuestion(part, microbatch, *firsts[group], float("inf"))
            self._answers[key] = (float("inf"), self._ask(self.islands[kind].name, [question])[0])
        return self._answers[key][1].partials

    def ask_on(
        self, island: Island, start: int, stop: int, microbatch: int, pace_s: float
    ) -> tuple[PartialPlan, ...]:
        """Partial plans on an island outside the enumeration; not cached."""
        if self.weights_bytes(start, stop) > island.gpus * island.gpu.memory_bytes:
            return ()
        question = SliceQuestion(island.anonymous(), microbatch, start, stop, pace_s)
        return self._ask(island.name, [question])[0].partials

    def _reason(self, kind: int, part: Island, start: int, stop: int, limit_s: float, least_s: float) -> str:
        """Reason for not requesting a pair whose step takes at least `least_s`; empty if it is requested."""
        if (
            "infeasibility" in self.policies
            and self.weights_bytes(start, stop) > part.gpus * part.gpu.memory_bytes
        ):
            return "infeasible"
        if "imbalance" in self.policies and least_s >= limit_s:
            return "imbalanced"
        if (
            self.window
            and not 1 <= self.bound.load(start, stop, kind, part.gpus) * self.window <= self.window**2
        ):
            self._outside_s = min(self._outside_s, least_s)
            return "windowed"
        return ""

    def _least_of(self, number: int, kind: int, part: Island, microbatch: int, rest: WorkBound) -> Floats:
        """Lower bounds in seconds on steps in which a part holds a slice, for the first of every class."""
        firsts, _ = slice_classes(self.model)
        starts, stops = np.array(firsts).T
        own = self._own(number, part, microbatch)
        priced_s = self.job.global_batch * (own[stops] - own[starts]) / part.gpus
        least_s: Floats = np.maximum(rest.slices_s(starts, stops, kind, part.gpus), priced_s)
        return least_s

    def lost(self, best_s: float) -> float:
        """Largest share of a step of `best_s` seconds that the imbalance window may have lost. No plan with a
        pair outside the window is faster than the smallest bound of those pairs."""
        return max(1.0 - self._outside_s / best_s, 0.0)

    def count_pruned(self) -> None:
        """Add the pairs that were never requested to the counters."""
        reasons = list(self._pruned.values())
        self.counts.imbalanced += reasons.count("imbalanced")
        self.counts.infeasible += reasons.count("infeasible")
        self.counts.windowed += reasons.count("windowed")

    def _ask(
        self, name: str, questions: Sequence[SliceQuestion], sizes: tuple[int, ...] = ()
    ) -> list[Answer]:
        """Answers about slices on one part with one microbatch size, in the order of the questions."""
        ready = self._ready if self.asking is None else self.asking.ready
        known = {question: ready.pop(question) for question in questions if question in ready}
        left = [question for question in questions if question not in known]
        if left:
            new = answered_together(self.parallelizer, self._subject, left, sizes)
            known |= zip(left, new, strict=True)
        answers = [known[question] for question in questions]
        self.counts.asked += len(answers)
        for answer in answers:
            self.priced += answer.considered
            self.counts.dominated += answer.dominated
            if not answer.partials and not answer.dominated:
                self.counts.infeasible += 1
            if self.record is not None:
                self.record += [_candidate(partial, name) for partial in answer.partials]
        return answers

    @cached_property
    def _parameters(self) -> NDArray[np.float64]:
        """Parameters of atoms [0, i), a prefix sum."""
        hidden = self.model.hidden
        counts = [
            atom.parameters(hidden) if isinstance(atom, Block) else atom.parameters
            for atom in atoms_of(self.model)
        ]
        return np.concatenate([[0.0], np.cumsum(np.array(counts, dtype=np.float64))])

    def weights_bytes(self, start: int, stop: int) -> float:
        """Bytes of weights, gradients and optimizer state of a slice, stored once: no layout needs less."""
        parameters = float(self._parameters[stop] - self._parameters[start])
        if self.model.tied and stop - start == self.model.layers + 2:
            parameters -= self.model.vocabulary_parameters
        return parameters * self.job.bytes_per_parameter


def _candidate(partial: PartialPlan, island: str) -> Candidate:
    return Candidate(
        partial.start,
        partial.stop,
        island,
        partial.nodes,
        partial.microbatch,
        layout=" | ".join(f"{run.stop - run.start} x {run.layout}" for run in partial.runs)
        or str(partial.layout),
        seconds=partial.slowest_s,
        stages_behind=partial.stages_behind if partial.stages_behind < UNLIMITED else None,
        peak_bytes=max(stage.peak_bytes(1) for stage in partial.stages),
        capacity_bytes=partial.stages[0].capacity_bytes,
    )
