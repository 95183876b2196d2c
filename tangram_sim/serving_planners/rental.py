"""The whole result of a rental problem: the plan, its bound, and comparison plans (`rivals`)."""

import time
from dataclasses import dataclass, replace

from tangram_sim.serving_planners.answer import Rental, Unanswered
from tangram_sim.serving_planners.milp import solve
from tangram_sim.serving_planners.problem import RentalProblem
from tangram_sim.serving_planners.reasons import why_infeasible
from tangram_sim.serving_planners.rivals import Lever, SingleKind, single_kinds, value_of, without_levers

_SMALL, _SMALL_S, _LARGE_S = 3000, 3.5, 18.0  # configurations x types; CPU seconds for the proof
_ALONE, _BUSIEST = 1.2, 16.0  # wall seconds for one CPU second: from which on it counts as busy; at most
_RIVALS_SHARE = 0.4  # of a limit that was asked for, for all comparisons
LEAST_S = 0.3  # for a plan, though time is over: late is better than nothing
_RIVAL_SHARE = 0.05  # of that time, for each program of a rival
_PLACED = 5.0  # times as long where replicas are placed on nodes


@dataclass(frozen=True, slots=True)
class RentalAnswer:
    """Result of a rental problem: the plan (None: there is none, for this `reason`) and comparisons."""

    plan: Rental | None
    rivals: list[SingleKind]
    levers: list[Lever]
    reason: str = ""
    proven: bool = True  # that there is no plan


def time_limit_of(problem: RentalProblem) -> float:
    """Default limit for the main program, in seconds of CPU time."""
    size = len(problem.configurations) * len(problem.types)
    return _SMALL_S if size <= _SMALL else _LARGE_S


def rent(problem: RentalProblem, time_limit_s: float | None = None, *, beside: bool = True) -> RentalAnswer:
    """The best plan within the time limit, never worse than the plans that it is compared with.

    Comparisons are the best plans of single kinds and without single levers (see `rivals`); unless `beside`,
    they are not computed.

    `time_limit_s` is for everything, in seconds of clock time: the plan comes first, then comparisons while
    time is left. Without it the limit is for the main program and in CPU seconds: since the solver measures
    clock time only, the program is solved again with a longer limit if other processes took much of the time.
    """
    if time_limit_s is not None:
        return _rent_within(problem, time_limit_s, beside=beside)
    limit_s = time_limit_of(problem)
    each_s = _RIVAL_SHARE * limit_s * (_PLACED if problem.loses_nodes else 1.0)
    rivals = single_kinds(problem, each_s) if beside else []
    levers = without_levers(problem, rivals, each_s) if beside else []
    clock, cpu = time.perf_counter(), time.process_time()
    answer = solve(problem, time_limit_s=limit_s)
    clock_s, cpu_s = time.perf_counter() - clock, time.process_time() - cpu
    if clock_s >= limit_s > _ALONE * cpu_s:
        answer = solve(problem, time_limit_s=limit_s * min(clock_s / max(cpu_s, 1e-3), _BUSIEST))
    return _compared(problem, answer, rivals, levers)


def _rent_within(problem: RentalProblem, time_limit_s: float, *, beside: bool) -> RentalAnswer:
    """The plan within the time limit (at least LEAST_S), then comparisons while time is left."""
    until = time.perf_counter() + time_limit_s
    share = (1.0 - _RIVALS_SHARE) if beside else 1.0
    answer = solve(problem, time_limit_s=max(share * time_limit_s, LEAST_S))
    each_s = _RIVAL_SHARE * time_limit_s
    rivals = single_kinds(problem, each_s, until) if beside else []
    done = not beside or time.perf_counter() > until
    return _compared(problem, answer, rivals, [] if done else without_levers(problem, rivals, each_s))


def _compared(
    problem: RentalProblem, answer: Rental | Unanswered, rivals: list[SingleKind], levers: list[Lever]
) -> RentalAnswer:
    """The result with the plan, or with a comparison plan where that is better."""
    others = [rival.answer for rival in rivals if rival.capped] + [lever.answer for lever in levers]
    other = min(others, key=value_of, default=answer)
    if isinstance(other, Rental) and other.value < value_of(answer):
        bound = answer.bound if isinstance(answer, Rental) else 0.0
        answer = replace(other, bound=min(bound, other.value))
    if isinstance(answer, Unanswered):
        reason = why_infeasible(problem, proven=answer.proven)
        return RentalAnswer(None, rivals, [], reason, answer.proven)
    return RentalAnswer(answer, rivals, levers)
