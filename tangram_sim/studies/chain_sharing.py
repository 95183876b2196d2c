"""Steps of chains whose transfers share network links, as they do when a plan is played."""

from dataclasses import dataclass

import numpy as np

from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.uniform.layouts import uniform_plan
from tangram_sim.sim import contention
from tangram_sim.studies.chain_problem import Chain, ChainProblem
from tangram_sim.studies.launchable_layouts import LaunchCandidate, LaunchLayouts
from tangram_sim.training.schedules import StageTimes, step_template
from tangram_sim.training.step.links import with_links

_SETTLED = (2, 3)  # times its depth in microbatches: from there on each further one takes as long
_SHORT = 5  # times its depth: a pipeline that is played to its end


@dataclass(frozen=True)
class SharedLinks:
    """The network whose links chains of some layouts share."""

    layouts: LaunchLayouts
    placement: Placement

    def longer(self, candidate: LaunchCandidate, problem: ChainProblem, chain: Chain) -> float:
        """Times longer the step of a chain takes as its transfers share links; 1 where they do not."""
        depth, layouts = candidate.layout.pp, self.layouts
        if depth == 1:
            return 1.0
        times, hop_s = problem.stage_times(chain)
        chunks = candidate.layout.vpp
        counts = np.array(candidate.layout.layers, float).reshape(chunks, depth).T
        shares = counts / counts.sum(axis=1, keepdims=True) if chunks > 1 else np.ones((depth, 1))
        none = np.zeros(depth)
        asked = StageTimes(
            forward_s=times[:, :1] * shares,
            backward_input_s=times[:, 1:2] * shares,
            backward_weight_s=0.0 * shares,
            send_forward_s=hop_s,
            send_backward_s=hop_s,
            sync_s=times[:, 2],
            optimizer_s=none,
        )
        pipeline = uniform_plan(layouts.model, layouts.cluster, candidate.job, candidate.layout).pipelines[0]
        size = pipeline.microbatch * layouts.job.boundary_bytes(layouts.model, 1)
        whole = problem.passes <= _SHORT * depth
        steps = []
        for passes in (problem.passes,) if whole else (times * depth for times in _SETTLED):
            template = step_template(candidate.job.schedule, depth, passes, chunks)
            graph = with_links(
                template.with_durations(asked), template, pipeline, self.placement, size
            )
            steps.append([contention.play(graph, shared).makespan_s for shared in (False, True)])
        alone_s, shared_s = np.array(steps[-1])
        if not whole:
            alone_s, shared_s = steps[-1] + (problem.passes / depth - _SETTLED[1]) * (np.array(steps[1]) - steps[0])
        return max(float(shared_s / alone_s), 1.0)
