"""Ranking of the best finalists: refine, simulate with shared links, sort."""

from dataclasses import dataclass

from tangram_sim.planners.api import Scored
from tangram_sim.planners.tangram.composition.finalists import (
    Finalist,
    PlanEvaluator,
    StageAssignment,
)
from tangram_sim.training.schedules import puts_off_weights


@dataclass(frozen=True, slots=True)
class RankBudget:
    """Limits on the finalists that are refined, and simulated with shared links."""

    shared: int = 32  # kinds of finalists played with shared links
    refined: int = 10  # of these, atoms moved over their boundaries
    rough_refined: int = 32  # and where composition only estimates: the best was seen behind ten others
    ops: int = 400_000  # of all steps played with shared links: an event loop takes microseconds for each


RANKS = {
    "quick": RankBudget(shared=8, refined=3, rough_refined=3, ops=100_000),
    "normal": RankBudget(),
    "exhaustive": RankBudget(),
}


def rank(
    played: list[tuple[float, tuple[StageAssignment, ...], int]],
    referee: PlanEvaluator,
    top: int,
    budget: RankBudget,
) -> list[Scored]:
    """The `top` different plans with shared links, fastest first, the best of each kind refined.

    The search simulates each transfer on a link of its own; here transfers share links.
    """
    kinds: dict[object, Finalist] = {}  # the best of each kind: others would refine to it
    for _, seats, microbatch in sorted(played, key=lambda entry: (entry[0], len(entry[1]))):
        kinds.setdefault(_kind(seats, microbatch), (seats, microbatch))
    contenders = list(kinds.values())[: max(budget.shared, top)]
    ops = sum(referee.ops(*contender) for contender in contenders)
    while ops > budget.ops and len(contenders) > max(2, top):  # long steps: fewer contenders
        ops -= referee.ops(*contenders.pop())
    contenders = referee.in_time(contenders)
    most = budget.rough_refined if puts_off_weights(referee.job.schedule) else budget.refined
    refined = [(referee.refine(*contender), contender[1]) for contender in contenders[:most]]
    contenders = referee.in_time([*dict.fromkeys([*refined, *contenders])])
    chosen: dict[object, Scored] = {}
    for scored in sorted((referee.scored(*contender) for contender in contenders), key=_step_s):
        pipeline = scored.plan.pipelines[0]
        shape = tuple(
            (stage.parts[0].island, len(stage.ranks), *(run.layout for run in stage.parts[0].layouts))
            for stage in pipeline.stages
        )
        chosen.setdefault((pipeline.microbatch, shape), scored)
    return list(chosen.values())[:top]


def _kind(seats: tuple[StageAssignment, ...], microbatch: int) -> object:
    """Key of plans that users see as the same: microbatch, and islands, GPUs and layouts of the stages."""
    return microbatch, tuple(
        (
            stage_assignment.island,
            len(stage_assignment.ranks),
            stage_assignment.layout,
            tuple(run.layout for run in stage_assignment.runs),
            stage_assignment.sequences,
        )
        for seat in seats
        for stage_assignment in (seat, *seat.beside)
    )


def _step_s(scored: Scored) -> float:
    return scored.step_s
