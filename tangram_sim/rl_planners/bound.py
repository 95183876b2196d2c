"""Comparative advantage: the training and generation rates of each kind of GPU.

With g and h the sequences per second that one GPU of a kind trains and generates at its most favourable
setting, a fleet of c GPUs of each kind consumes at most max over x of min(sum (1 - x) c g, sum x c h)
sequences per second where generation and training overlap.
"""

from dataclasses import dataclass, replace

from tangram_sim.clusters import Cluster, NodeGroup
from tangram_sim.errors import InfeasibleError
from tangram_sim.models import has_experts
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.post_training.plan import TrainingPool
from tangram_sim.post_training.training_phases import compute_s
from tangram_sim.rl_planners.generation_bound import kind_rates
from tangram_sim.rl_planners.problem import RlProblem


@dataclass(frozen=True, slots=True)
class Advantage:
    """Sequences per second that one GPU of a kind trains and generates, each at its most favourable setting.

    `token_s`: least seconds per token of a response that runs alone.
    """

    kind: str
    gpus: int
    trains: float
    generates: float
    token_s: float = 0.0

    @property
    def ratio(self) -> float | None:
        """Generated over trained: the larger, the better at rollout by comparison; None: it cannot train."""
        return self.generates / self.trains if self.trains else None


def advantages(problem: RlProblem) -> list[Advantage]:
    """Comparative advantage of each GPU kind in the fleet, one row per kind."""
    found = []
    for kind in dict.fromkeys(problem.kinds):
        groups = [group for group in problem.fleet.groups if group.node.gpu.name == kind]
        gpus = sum(group.count * group.node.gpus for group in groups)
        rates = kind_rates(problem, problem.fleet.groups.index(groups[0]))
        generates = float(rates.tokens_per_s.max()) / problem.work.lengths.mean
        found.append(Advantage(kind, gpus, _trained(problem, groups[0]), generates, rates.token_s))
    return found


def _trained(problem: RlProblem, group: NodeGroup) -> float:
    """Sequences per second that one GPU trains and scores with compute only, ignoring memory."""
    work, extra = problem.work, problem.overheads
    node = replace(group.node, gpus=1, bridges=(), bridge=None)
    pool = TrainingPool(
        Cluster("one", (NodeGroup("g0", 1, node),)),
        Uniform(zero_stage=0, recompute="none"),
        problem.pack_tokens,
        stack=problem.stack,
    )
    try:
        update_s, forward_s = compute_s(work.model, work, pool, problem.hwdb)
    except InfeasibleError:  # no units for the number format
        return 0.0
    passes = work.old_logprobs + work.reference
    sparse = extra.sparse_update_scale if has_experts(work.model) else 1.0
    seconds = update_s * work.epochs * extra.update_scale + passes * forward_s * extra.forward_scale
    seconds *= sparse
    return work.sequences / seconds if seconds else float("inf")
