"""Steps of chains whose transfers share network links, as they do when a plan is played; and their cuts."""

from dataclasses import dataclass
from math import inf

import numpy as np

from tangram_sim.errors import TangramError
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.api import Counts
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.composition.finalists import PlanEvaluator, StageAssignment
from tangram_sim.planners.uniform.layouts import uniform_plan
from tangram_sim.sim import contention
from tangram_sim.studies.chain_problem import Chain, ChainProblem
from tangram_sim.studies.launchable_layouts import LaunchCandidate, LaunchLayouts
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Pipeline
from tangram_sim.training.schedules import StageTimes, step_template
from tangram_sim.training.step.links import with_links
from tangram_sim.training.step.lowered import Lowering

_ALONE = 1e-4  # of the step: what links that are shared may take without being looked at
_SETTLED = (2, 3)  # times its depth in microbatches: from there on each further one takes as long
_SHORT = 5  # times its depth: a pipeline that is played to its end


@dataclass(frozen=True)
class SharedLinks:
    """The network whose links chains of some layouts share."""

    layouts: LaunchLayouts
    placement: Placement

    def longer(self, candidate: LaunchCandidate, problem: ChainProblem, chain: Chain) -> float:
        """Times longer the step of a chain takes as its transfers share links; 1 where they do not."""
        depth, chunks, layouts = candidate.layout.pp, candidate.layout.vpp, self.layouts
        if depth == 1:
            return 1.0
        times, hop_s = problem.stage_times(chain)
        counts = np.array(candidate.layout.layers, float).reshape(chunks, depth).T
        shares = counts / counts.sum(axis=1, keepdims=True) if chunks > 1 else np.ones((depth, 1))
        asked = StageTimes(
            forward_s=times[:, :1] * shares,
            backward_input_s=times[:, 1:2] * shares,
            backward_weight_s=0.0 * shares,
            send_forward_s=hop_s,
            send_backward_s=hop_s,
            sync_s=times[:, 2],
            optimizer_s=np.zeros(depth),
        )
        pipeline = uniform_plan(layouts.model, layouts.cluster, candidate.job, candidate.layout).pipelines[0]
        size = pipeline.microbatch * layouts.job.boundary_bytes(layouts.model, 1)
        settled = problem.passes > _SHORT * depth
        steps = []
        for passes in (factor * depth for factor in _SETTLED) if settled else (problem.passes,):
            template = step_template(candidate.job.schedule, depth, passes, chunks)
            graph = template.with_durations(asked)
            shared = with_links(graph, template, pipeline, self.placement, size)
            steps.append(contention.play(shared).makespan_s)
        periods = problem.passes / depth - _SETTLED[1] if settled else 0.0
        step_s = steps[-1] + periods * (steps[-1] - steps[0])
        return max(step_s / chain.step_s, 1.0)


def refined(
    layouts: LaunchLayouts,
    job: Job,
    lowering: Lowering,
    seats: tuple[StageAssignment, ...],
    microbatch: int,
    deadline: Deadline | None = None,
) -> tuple[float, Pipeline | None]:
    """(seconds of the step, the pipeline) of stages, atoms moved while that makes the step shorter.

    (inf, None) where they do not fit, or have no price.
    """
    evaluator = PlanEvaluator(layouts.model, layouts.cluster, job, lowering, Counts(), deadline)

    def shared_s(some: tuple[StageAssignment, ...]) -> float:
        return max(evaluator.step_s(some, microbatch), evaluator.shared(some, microbatch))

    try:
        moved = evaluator.refine(seats, microbatch, layouts.budget.rounds)
        if shared_s(moved) > (1.0 + _ALONE) * evaluator.step_s(moved, microbatch):
            moved = min((moved, seats), key=shared_s)
            moved = evaluator.refine(moved, microbatch, layouts.budget.rounds, layouts.budget.ops)
        step_s = shared_s(moved)
        return step_s, evaluator.lowered(moved, microbatch)[0] if step_s < inf else None
    except TangramError:
        return inf, None
