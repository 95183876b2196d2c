"""External parallelizers: programs that receive requests and send answers as lines of JSON.

The program proposes layouts; the simulator prices them, so that its answers are comparable with other
parallelizers'. Protocol: docs/how-to/add-a-parallelizer.md.
"""

import json
import os
import shlex
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.api import Answer, Parallelizer, Rejection, Request
from tangram_sim.parallelizers.assembly import depths_allowed, menu_of, partial_of, undominated
from tangram_sim.parallelizers.conversation import Conversation
from tangram_sim.parallelizers.inner_cuts import balanced_cuts
from tangram_sim.parallelizers.laws import expert_law
from tangram_sim.parallelizers.menu import Run
from tangram_sim.parallelizers.wire import Proposal, proposal_of, question_of
from tangram_sim.training.plan import LayoutRun, PartialPlan, StagePrice
from tangram_sim.units import show_bytes

COMMAND, TIME_LIMIT = "TANGRAM_PLANNER", "TANGRAM_PLANNER_TIME_LIMIT_S"
_REMEMBERED = 4096  # questions


class External(Parallelizer):
    """Asks the program `command`, set by subclasses or by the environment variable TANGRAM_PLANNER."""

    name = "external"
    command: tuple[str, ...] = ()
    time_limit_s = 30.0

    def __init__(self) -> None:
        self._conversation: Conversation | None = None
        self._known: OrderedDict[Hashable, tuple[tuple[Proposal, ...], str]] = OrderedDict()

    def parallelize(self, request: Request) -> Answer:
        """The program's proposals, priced. Raises TangramError when it dies, hangs or answers nonsense."""
        try:
            question = question_of(request)
        except InfeasibleError as error:
            return Answer((), (Rejection(Layout(dp=request.island.gpus), str(error)),), 1, 0, exact=False)
        proposals, why = self._asked(question, request)
        found: dict[Proposal, PartialPlan] = {}
        rejected: dict[Layout, Rejection] = {}
        dominated = 0
        for proposal in proposals:
            try:
                partial = _priced(request, proposal)
            except InfeasibleError as error:
                layout = _culprit(request, proposal)
                rejected.setdefault(layout, Rejection(layout, str(error)))
                continue
            if partial.stages_behind >= 0:
                found[partial.runs or proposal] = partial
            elif partial.runs:
                dominated += 1  # no single layout to name
                why = why or "its runs of layers do not fit the memory together"
            else:
                rejected.setdefault(partial.layout, _too_large(partial))
        if not found and not rejected:
            layout = Layout(dp=2 * request.island.gpus)  # names no layout that could be priced
            rejected[layout] = Rejection(layout, why or f"{self.name} proposes nothing that fits")
        answered = undominated(request, list(found.values()))
        kept = [
            rejection
            for layout, rejection in rejected.items()
            if all(layout != p.layout or p.runs for p in answered)
        ]
        dominated += len(found) - len(answered)
        return Answer(
            tuple(answered), tuple(kept), len(answered) + len(kept) + dominated, dominated, exact=False
        )

    def price(self, request: Request, layout: Layout) -> PartialPlan:
        """Price any valid layout on the island."""
        return _priced(request, (LayoutRun(request.slice.start, request.slice.stop, layout),))

    def reprice(self, request: Request, partial: PartialPlan) -> PartialPlan:
        """Price a layout or runs; the first and last run are extended or cut to the ends of the slice."""
        if not partial.runs:
            return self.price(request, partial.layout)
        start, stop = request.slice.start, request.slice.stop
        runs = [run for run in partial.runs if run.start < stop and run.stop > start]
        runs[0] = replace(runs[0], start=start)
        runs[-1] = replace(runs[-1], stop=stop)
        return _priced(request, tuple(runs))

    def _asked(self, question: dict[str, Any], request: Request) -> tuple[tuple[Proposal, ...], str]:
        """(proposals, reason where there are none) of the program; answers to equal questions are cached."""
        asks, rests_on = self._program(), (request.hwdb.edition, request.island, request.job)
        key = json.dumps(question, sort_keys=True), rests_on, asks
        if key not in self._known:
            talk = self._conversation
            if talk is None or (talk.command, talk.time_limit_s) != asks:
                self._conversation = talk = Conversation(self.name, *asks)
            answer = talk.open(question)
            while "price" in answer:
                if not isinstance(answer["price"], list):
                    raise talk.refuse(f'asked for prices of {answer["price"]!r}; "price" takes a list')
                answer = talk.go_on({"prices": [self._quote(request, given) for given in answer["price"]]})
            plans = answer.get("plans")
            if not isinstance(plans, list):
                raise talk.refuse(f'answered an object without a list "plans" (keys: {", ".join(answer)})')
            proposals = tuple(self._proposal(request, given) for given in plans)
            self._known[key] = (tuple(dict.fromkeys(proposals)), str(answer.get("infeasible", "")))
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return self._known[key]

    def _program(self) -> tuple[tuple[str, ...], float]:
        command = self.command or tuple(shlex.split(os.environ.get(COMMAND, "")))
        if not command:
            raise BadInputError(
                f"parallelizer {self.name!r} does not know which program to ask; set {COMMAND}, "
                f"e.g. {COMMAND}='my-planner --json' (docs/how-to/add-a-parallelizer.md)"
            )
        given = os.environ.get(TIME_LIMIT, "") if not self.command else ""
        try:
            limit = float(given) if given else self.time_limit_s
        except ValueError:
            limit = 0.0
        if not 0.0 < limit < 1e6:
            raise BadInputError(f"{TIME_LIMIT}={given}: give seconds above 0")
        return command, limit

    def _proposal(self, request: Request, given: Any) -> Proposal:
        """One proposal of the program as runs. Raises TangramError if it is not understood."""
        assert self._conversation is not None
        try:
            return proposal_of(request, given)
        except (KeyError, TypeError, ValueError) as error:
            shown = json.dumps(given)[:200]
            raise self._conversation.refuse(f"proposed {shown}, which is not understood: {error}") from None

    def _quote(self, request: Request, given: Any) -> dict[str, Any]:
        """Price of a plan that the program asks about, or the reason why it has none."""
        try:
            partial = _priced(request, self._proposal(request, given))
        except InfeasibleError as error:
            return {"infeasible": str(error)}
        return {
            "slowest_s": partial.slowest_s,
            "latency_s": partial.latency_s,
            "tail_s": partial.tail_s,
            "stages_behind": partial.stages_behind,
            "stages": [
                {name: getattr(stage, name) for name in StagePrice.__dataclass_fields__}
                for stage in partial.stages
            ],
        }


def _problems(request: Request, layout: Layout, depth: int) -> Iterator[str]:
    if layout.gpus != request.island.gpus:
        yield f"{layout} occupies {layout.gpus} GPUs, the island has {request.island.gpus}"
    if layout.pp != depth:
        yield f"{layout} has another depth than the run before it"
    if depth not in depths_allowed(request):
        yield f"{layout}: {request.island.name} allows no inner pipeline of {depth}"
    unshared = expert_law(request.slice.model, layout.ep, layout.dp * layout.cp)
    if unshared:
        yield f"{layout}: {unshared}"
    if not request.constraints.allows(layout, request.microbatch):
        yield f"{layout} breaks what was fixed: {request.constraints}"


def _culprit(request: Request, proposal: Proposal) -> Layout:
    """The layout of the first invalid run; a placeholder where every run is valid on its own."""
    for run in proposal:
        try:
            _priced(request, (LayoutRun(request.slice.start, request.slice.stop, run.layout),))
        except InfeasibleError:
            return run.layout
    return Layout(dp=2 * request.island.gpus)  # names no layout that could be priced


def _priced(request: Request, proposal: Proposal) -> PartialPlan:
    """The proposal priced by the simulator. Raises InfeasibleError for an invalid one."""
    depth = proposal[0].layout.pp
    for run in proposal:
        if problem := next(_problems(request, run.layout, depth), ""):
            raise InfeasibleError(problem)
    single = [replace(run.layout, pp=1) for run in proposal]
    menu = menu_of(request, depth, single)
    if menu.objections:
        layout, reason = menu.objections[0]
        raise InfeasibleError(f"{layout}: {reason}")
    start, stop = request.slice.start, request.slice.stop
    cuts = balanced_cuts(menu.pricer, start, stop, depth)
    if len(cuts) <= depth:
        raise InfeasibleError(f"pp={depth} inner stages, but the slice has only {stop - start} atoms to cut")
    stages: list[list[Run]] = []
    for low, high in pairwise(cuts):
        stages.append(
            [
                (max(low, run.start), min(high, run.stop), menu.layouts.index(layout))
                for run, layout in zip(proposal, single, strict=True)
                if max(low, run.start) < min(high, run.stop)
            ]
        )
    return partial_of(request, menu, cuts, stages)


def _too_large(partial: PartialPlan) -> Rejection:
    fullest = max(partial.stages, key=lambda stage: stage.peak_bytes(1) - stage.capacity_bytes)
    needed, capacity = fullest.peak_bytes(1), fullest.capacity_bytes
    if needed <= capacity:  # one microbatch fits, those of the inner stages behind do not
        return Rejection(partial.layout, f"does not fit {show_bytes(capacity)} with its inner stages behind")
    reason = f"needs {show_bytes(needed)} per GPU, {show_bytes(capacity)} usable"
    return Rejection(partial.layout, reason, needed, capacity)
