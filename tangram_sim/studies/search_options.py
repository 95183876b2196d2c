"""Checks that a request is consistent: fixed options against model, batch and islands."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod

from tangram_sim.clusters import Cluster, Gpu, Island
from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.findings import Finding, Severity, declare
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.parallelizers.laws import context_law, expert_law, listed, tensor_law
from tangram_sim.parallelizers.layouts import divisors
from tangram_sim.planners.api import SearchOptions
from tangram_sim.training.job import Job

_OF_A_STAGE = ("tp", "cp", "dp", "pp")  # degrees that multiply to its GPUs


def named_islands(wishes: SearchOptions, islands: Sequence[Island]) -> SearchOptions:
    """The options with node groups and GPU names in `order` and `exclude` replaced by islands.

    `g0` stands for all pieces `g0.1`, `g0.2` of a group that is cut; groups in a joint island (`g0+g1`) can
    only be excluded together, by their own names or the island's. A GPU name, or its beginning, stands for
    all islands of that kind if it matches one kind only.
    """
    return replace(
        wishes, order=_as_islands(wishes.order, islands), exclude=_as_islands(wishes.exclude, islands)
    )


def _as_islands(given: Sequence[str], islands: Sequence[Island]) -> tuple[str, ...]:
    names = [island.name for island in islands]
    found: list[str] = []
    for name in given:
        pieces = [other for other in names if other.startswith(f"{name}.") and "+" not in other]
        joined = [other for other in names if "+" in other and name in other.split("+")]
        if name not in names and pieces:
            found += pieces
        elif name not in names and joined and set(joined[0].split("+")) <= set(given):
            found += [joined[0]] if joined[0] not in found else []
        elif name not in names and not joined:
            found += _of_kind(name, {item.name: item.gpu for item in islands}) or [name]
        else:
            found.append(name)
    return tuple(found)


def named_groups(wishes: SearchOptions, cluster: Cluster) -> SearchOptions:
    """The options with GPU names in `order` and `exclude` replaced by the node groups of that kind."""
    kinds = {group.name: group.node.gpu for group in cluster.groups}

    def groups(given: Sequence[str]) -> tuple[str, ...]:
        return tuple(own for name in given for own in _of_kind(name, kinds) or [name])

    return replace(wishes, order=groups(wishes.order), exclude=groups(wishes.exclude))


def _of_kind(name: str, kinds: Mapping[str, Gpu]) -> list[str]:
    """Keys of `kinds` whose GPU name is `name` or begins with it; [] unless they are all one kind."""
    begun = [
        place
        for place, gpu in kinds.items()
        if f"{gpu.name.lower()}-".startswith(f"{name.lower().removesuffix('-')}-")
    ]
    return begun if len({kinds[place].name for place in begun}) == 1 else []


def require_possible(
    model: Model, job: Job, wishes: SearchOptions, islands: Sequence[Island], hwdb: Hwdb
) -> None:
    """Raise BadInputError or InfeasibleError for constraints that no layout can meet, naming the rule."""
    fixed = dict(wishes.constraints.fixed)
    for broken in (
        tensor_law(model, fixed.get("tp", 1)),
        context_law(job.seq, fixed.get("cp", 1)),
        expert_law(model, fixed.get("ep", 1)),
    ):
        if broken:
            raise BadInputError(f"`fixed=` {broken}{broken.advice}")
    _gpus(model, fixed, islands)
    _batch(job, wishes.constraints, max(island.gpus for island in islands))
    zero = fixed.get("zero_stage", 0)
    if zero and fixed.get("dp") == 1 and fixed.get("cp") == 1:
        raise BadInputError(f"`fixed=` zero={zero}: with dp=1 and cp=1 there are no replicas to shard over")
    fused = [hwdb.efficiency(island.gpu, job.precision.compute).fused_attention.value for island in islands]
    if wishes.constraints.recompute == ("selective",) and job.flash_attention and all(fused):
        kinds = ", ".join(dict.fromkeys(island.gpu.name for island in islands))
        raise BadInputError(
            f"`recompute=selective`: saves nothing on {kinds}, whose fused attention kernel stores no "
            "scores; give none or full"
        )


def _gpus(model: Model, fixed: dict[str, int], islands: Sequence[Island]) -> None:
    """Raise InfeasibleError or BadInputError unless whole nodes of one island suit the fixed degrees."""
    degrees = _degrees(fixed)
    if not degrees:
        return
    product = prod(degrees.values())
    words = " ".join(f"{name}={value}" for name, value in degrees.items())
    largest = max(islands, key=lambda island: island.gpus)
    if product > largest.gpus:
        raise InfeasibleError(
            f"`fixed=` {words}: one stage would take {product} GPUs or more, the largest island "
            f"{largest.name} has {largest.gpus} ({largest.gpu.name}); lower a degree"
        )
    whole = len(degrees) == 4
    if not any(_suits(island, degrees) for island in islands):
        shapes = "; ".join(f"{i.name}: {i.nodes} nodes of {i.gpus_per_node}" for i in islands)
        raise InfeasibleError(
            f"`fixed=` {words}: a stage takes whole nodes, and no number of them has "
            f"{'exactly ' if whole else 'a multiple of '}{product} GPUs ({shapes}); change a degree"
        )
    pp = fixed.get("pp", 1)
    domains = {i.name: i.gpus_per_node for i in islands}
    if pp > 1 and all(domain % pp for domain in domains.values()):
        shapes = ", ".join(f"{name}: {domain}" for name, domain in domains.items())
        raise InfeasibleError(
            f"`fixed=` pp={pp}: inner pipelines stay inside one node and must divide its GPUs "
            f"({shapes}); pp counts stages inside a node, not those of the whole pipeline"
        )
    if "dp" in fixed and "cp" in fixed:
        unshared = expert_law(model, fixed.get("ep", 1), fixed["dp"] * fixed["cp"])
        if unshared:
            raise BadInputError(f"`fixed=` {unshared}{unshared.advice}")


def _degrees(fixed: dict[str, int]) -> dict[str, int]:
    """The fixed degrees whose product is the number of GPUs of a stage."""
    return {name: fixed[name] for name in _OF_A_STAGE if name in fixed}


def _suits(island: Island, degrees: dict[str, int]) -> bool:
    """Whether some number of the island's nodes suits a stage of the fixed degrees."""
    product, whole = prod(degrees.values()), len(degrees) == len(_OF_A_STAGE)
    sizes = [nodes * island.gpus_per_node for nodes in range(1, island.nodes + 1)]
    return any(size == product if whole else size % product == 0 for size in sizes)


IDLE_FOR_DEGREES = declare(
    "idle-for-fixed-degrees",
    Severity.NOTE,
    "{island} ({nodes} x {gpus_per_node} {gpu}) stays idle: `fixed=` {degrees} wants {multiple}{wanted} GPUs "
    "on whole nodes, which it has not",
)


def left_out(constraints: Constraints, islands: Sequence[Island], used: Collection[str]) -> list[Finding]:
    """Findings on the islands outside `used` on which no stage with the fixed degrees fits."""
    degrees = _degrees(dict(constraints.fixed))
    return [
        IDLE_FOR_DEGREES(
            island=island.name,
            nodes=island.nodes,
            gpus_per_node=island.gpus_per_node,
            gpu=island.gpu.name,
            degrees=" ".join(f"{name}={value}" for name, value in degrees.items()),
            multiple="" if len(degrees) == len(_OF_A_STAGE) else "a multiple of ",
            wanted=prod(degrees.values()),
        )
        for island in islands
        if degrees and island.name not in used and not _suits(island, degrees)
    ]


def _batch(job: Job, constraints: Constraints, gpus: int) -> None:
    """Raise BadInputError or InfeasibleError unless some microbatch gives every rank its share."""
    fixed, per_rank = dict(constraints.fixed), constraints.microbatch_per_rank
    dp, batch = fixed.get("dp", 0), job.global_batch
    if dp > batch:
        raise BadInputError(
            f"`fixed=` dp={dp}: a global batch of {batch} gives some ranks no sequence; lower dp or raise "
            "`global_batch=`"
        )
    if per_rank > batch or per_rank * dp > batch + dp - 1:
        ranks = f" x dp {dp}" if dp else ""
        raise BadInputError(
            f"`microbatch_per_rank={per_rank}`{ranks}: one microbatch is more than the global batch of "
            f"{batch}; lower it or raise `global_batch=`"
        )
    sizes = divisors(batch)
    replicas = [dp] if dp else range(1, gpus + 1)
    shares = sorted({-(-size // r) for r in replicas for size in sizes if size >= r})
    if per_rank and per_rank not in shares:
        ranks = f"with dp={dp}" if dp else f"with any dp up to {gpus}"
        below, above = [s for s in shares if s < per_rank][-1:], [s for s in shares if s > per_rank][:1]
        raise BadInputError(
            f"`microbatch_per_rank={per_rank}`: a microbatch is a divisor of the global batch of {batch} "
            f"({listed(sizes)}), and {ranks} none gives its fullest rank exactly {per_rank} sequences; the "
            f"nearest that can be: {' and '.join(map(str, below + above))}; or take a `global_batch=` that "
            f"{per_rank * max(dp, 1)} divides"
        )
