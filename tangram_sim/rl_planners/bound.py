"""What each kind of GPU is best at, and a bound on the rate that no placement of roles passes.

With g and h the sequences a second that one GPU of a kind trains and generates at its most favourable
setting, a fleet of c GPUs of each kind consumes at most max over x of min(sum (1 - x) c g, sum x c h)
sequences a second where generation and training overlap, and no step is shorter than
N / sum c h + N / sum c g where they take turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tangram_sim.clusters import Cluster, NodeGroup
from tangram_sim.errors import TangramError
from tangram_sim.models import has_experts
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.post_training.plan import RolloutReplicas, TrainingPool
from tangram_sim.post_training.rollout import fleet_of
from tangram_sim.post_training.training_phases import compute_s
from tangram_sim.rl_planners.problem import RlProblem

_MOST_MEMORY = 0.95


@dataclass(frozen=True, slots=True)
class Advantage:
    """Sequences a second that one GPU of a kind trains and generates, at the most favourable setting of each.

    `token_s`: least seconds a token of a response that runs alone.
    """

    kind: str
    gpus: int
    trains: float
    generates: float
    token_s: float = 0.0

    @property
    def ratio(self) -> float:
        """Generated over trained: the larger, the better the kind is at rollout by comparison."""
        return self.generates / self.trains if self.trains else float("inf")


def overlapped_rate(kinds: Sequence[Advantage]) -> tuple[float, dict[str, float]]:
    """(sequences a second at most, share of each kind's GPUs that generate) where both roles overlap.

    Kinds are given to rollout in the order of their ratio until both rates are equal.
    """
    ordered = sorted(kinds, key=lambda one: -one.ratio)
    generated, trained = 0.0, sum(one.gpus * one.trains for one in kinds)
    shares = dict.fromkeys((one.kind for one in kinds), 0.0)
    for one in ordered:
        gain, loss = one.gpus * one.generates, one.gpus * one.trains
        if generated + gain <= trained - loss:
            generated, trained = generated + gain, trained - loss
            shares[one.kind] = 1.0
            continue
        share = max((trained - generated) / (gain + loss), 0.0) if gain + loss else 0.0
        shares[one.kind] = share
        generated, trained = generated + share * gain, trained - share * loss
        break
    return min(generated, trained), shares


def turns_s(kinds: Sequence[Advantage], sequences: int) -> float:
    """Least seconds of a step whose generation and training take turns on all GPUs."""
    generated, trained = (
        sum(one.gpus * one.generates for one in kinds),
        sum(one.gpus * one.trains for one in kinds),
    )
    return sequences / generated + sequences / trained if generated and trained else float("inf")


def advantages(problem: RlProblem) -> list[Advantage]:
    """The table of comparative advantage, one row for each GPU kind of the fleet."""
    found = []
    for kind in dict.fromkeys(problem.kinds):
        groups = [group for group in problem.fleet.groups if group.node.gpu.name == kind]
        gpus = sum(group.count * group.node.gpus for group in groups)
        generates, token_s = _generated(problem, groups[0])
        found.append(Advantage(kind, gpus, _trained(problem, groups[0]), generates, token_s))
    return found


def _trained(problem: RlProblem, group: NodeGroup) -> float:
    """Sequences a second that one GPU trains and scores, computing all the time, whatever fits it."""
    work, extra = problem.work, problem.overheads
    node = replace(group.node, gpus=1, bridges=(), bridge=None)
    pool = TrainingPool(
        Cluster("one", (NodeGroup("g0", 1, node),)),
        Uniform(zero_stage=0, recompute="none"),
        problem.pack_tokens,
        stack=problem.stack,
    )
    update_s, forward_s = compute_s(work.model, work, pool, problem.hwdb)
    passes = work.old_logprobs + work.reference
    sparse = extra.sparse_update_scale if has_experts(work.model) else 1.0
    seconds = update_s * work.epochs * extra.update_scale + passes * forward_s * extra.forward_scale
    seconds *= sparse
    return work.sequences / seconds if seconds else float("inf")


def _generated(problem: RlProblem, group: NodeGroup) -> tuple[float, float]:
    """(sequences a second of one GPU with all seats taken, seconds a token alone), each at its best width."""
    work, extra = problem.work, problem.overheads
    heads = min(block.attention.heads for block in work.model.blocks)
    best, alone = 0.0, float("inf")
    for tp in (1, 2, 4, 8, 16, 32):
        if heads % tp or tp > group.node.gpus * group.count:
            continue
        replicas = RolloutReplicas(
            group.node.gpu.name, 1, tp, engine=problem.engine, memory_fraction=_MOST_MEMORY
        )
        try:
            fleet = fleet_of(work, [replicas], problem.hwdb, extra.rollout_scale, extra.rollout_iteration_s)
        except TangramError:
            continue
        table = fleet[0].table
        alone = min(alone, table.decode_step_s(1, work.prompt_tokens))
        for running in range(1, len(table.decode_s)):
            # Contexts cost: the least any request has is its prompt.
            each = running / table.decode_step_s(running, running * work.prompt_tokens)
            best = max(best, each / work.lengths.mean / tp)
    return best, alone


def bound_s(problem: RlProblem, kinds: Sequence[Advantage]) -> float:
    """Least seconds of a step on the fleet under the problem's bound on staleness.

    The longest response runs for at least as long as it takes alone; of steps that overlap, staleness + 1 do.
    What is fixed (data, logging, starting a weight sync) comes on top of everything.
    """
    work, extra = problem.work, problem.overheads
    lengths = work.lengths.draw(work.prompts, work.samples, 0)
    longest_s = (float(lengths.max()) - 1.0) * min(one.token_s for one in kinds)
    fixed_s = extra.step_s + extra.sync_s
    if problem.staleness == 0:
        trained_s = work.sequences / sum(one.gpus * one.trains for one in kinds)
        return max(turns_s(kinds, work.sequences), longest_s + trained_s) + fixed_s
    rate, _ = overlapped_rate(kinds)
    overlapping = 1 if problem.staleness == 1 else problem.staleness + 1
    pace_s = work.sequences / rate if rate else float("inf")
    # Where steps overlap the trainer may do what is fixed while rollout goes on, but no sync is hidden.
    return max(pace_s, longest_s / overlapping, extra.step_s) + extra.sync_s
