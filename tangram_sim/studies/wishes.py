"""Whether a request contradicts itself: what the user fixes against what model, batch and islands allow."""

from collections.abc import Sequence
from dataclasses import replace

from tangram_sim.clusters import Island
from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.jobs import Job
from tangram_sim.models import Experts, Model
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.parallelizers.layouts import divisors
from tangram_sim.planners.api import Wishes

_SHOWN = 10  # alternatives listed


def named_islands(wishes: Wishes, islands: Sequence[Island]) -> Wishes:
    """`--order` and `--exclude` with names of node groups turned into the islands that hold just them.

    `g0` stands for all pieces `g0.1`, `g0.2` of a group that is cut; groups that are joined (`g0+g1`)
    can only be excluded together, by their own names or the island's.
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
        else:
            found.append(name)
    return tuple(found)


def require_possible(model: Model, job: Job, wishes: Wishes, islands: Sequence[Island], hwdb: Hwdb) -> None:
    """Raise BadInputError or InfeasibleError for constraints that no layout can meet, naming the law."""
    fixed = dict(wishes.constraints.fixed)
    _tensor_and_context(model, job, fixed)
    _experts(model, fixed)
    _gpus(fixed, islands)
    _batch(job, wishes.constraints, max(island.gpus for island in islands))
    zero = fixed.get("zero_stage", 0)
    if zero and fixed.get("dp") == 1 and fixed.get("cp") == 1:
        raise BadInputError(f"--fix zero={zero}: with dp=1 and cp=1 there are no replicas to shard over")
    fused = [hwdb.efficiency(island.gpu, job.recipe.gemm_dtype).fused_attention.value for island in islands]
    if wishes.constraints.recompute == ("selective",) and job.flash_attention and all(fused):
        kinds = ", ".join(dict.fromkeys(island.gpu.name for island in islands))
        raise BadInputError(
            f"--recompute selective: saves nothing on {kinds}, whose fused attention kernel stores no "
            "scores; give none or full"
        )


def _listed(numbers: Sequence[int]) -> str:
    more = ", ..." if len(numbers) > _SHOWN else ""
    return ", ".join(map(str, numbers[:_SHOWN])) + more


def _tensor_and_context(model: Model, job: Job, fixed: dict[str, int]) -> None:
    tp, cp = fixed.get("tp", 1), fixed.get("cp", 1)
    for heads in sorted({block.attention.heads for block in model.blocks}):
        if heads % tp:
            raise BadInputError(
                f"--fix tp={tp}: does not divide the {heads} attention heads of {model.name}; "
                f"give one of {_listed(divisors(heads))}"
            )
    if job.seq % cp:
        raise BadInputError(
            f"--fix cp={cp}: does not divide the sequence of {job.seq} tokens; "
            f"give one of {_listed(divisors(job.seq))}"
        )


def _experts(model: Model, fixed: dict[str, int]) -> None:
    ep = fixed.get("ep", 1)
    counts = sorted({b.feed_forward.experts for b in model.blocks if isinstance(b.feed_forward, Experts)})
    if ep > 1 and not counts:
        raise BadInputError(f"--fix ep={ep}: {model.name} has no experts; leave ep out")
    for experts in counts:
        if experts % ep:
            raise BadInputError(
                f"--fix ep={ep}: does not divide the {experts} experts of {model.name}; "
                f"give one of {_listed(divisors(experts))}"
            )


def _gpus(fixed: dict[str, int], islands: Sequence[Island]) -> None:
    """A stage takes whole nodes of one island: some number of them must suit the fixed degrees."""
    degrees = {name: fixed[name] for name in ("tp", "cp", "dp", "pp") if name in fixed}
    if not degrees:
        return
    product = 1
    for value in degrees.values():
        product *= value
    words = " ".join(f"{name}={value}" for name, value in degrees.items())
    sizes = {
        island.name: [n * island.gpus_per_node for n in range(1, island.nodes + 1)] for island in islands
    }
    largest = max(islands, key=lambda island: island.gpus)
    if product > largest.gpus:
        raise InfeasibleError(
            f"--fix {words}: one stage would take {product} GPUs or more, the largest island "
            f"{largest.name} has {largest.gpus} ({largest.gpu.name}); lower a degree"
        )
    whole = len(degrees) == 4
    every = [size for found in sizes.values() for size in found]
    if not any(size == product if whole else size % product == 0 for size in every):
        shapes = "; ".join(f"{i.name}: {i.nodes} nodes of {i.gpus_per_node}" for i in islands)
        raise InfeasibleError(
            f"--fix {words}: a stage takes whole nodes, and no number of them has "
            f"{'exactly ' if whole else 'a multiple of '}{product} GPUs ({shapes}); change a degree"
        )
    pp = fixed.get("pp", 1)
    domains = {i.name: i.gpus_per_node for i in islands}
    if pp > 1 and all(domain % pp for domain in domains.values()):
        shapes = ", ".join(f"{name}: {domain}" for name, domain in domains.items())
        raise InfeasibleError(
            f"--fix pp={pp}: inner pipelines stay inside one node and must divide its GPUs "
            f"({shapes}); pp counts stages inside a node, not those of the whole pipeline"
        )
    ep, replicas = fixed.get("ep", 1), fixed.get("dp", 0) * fixed.get("cp", 1)
    if "dp" in fixed and "cp" in fixed and replicas % ep:
        raise BadInputError(f"--fix ep={ep}: does not divide dp x cp = {replicas}")


def _batch(job: Job, constraints: Constraints, gpus: int) -> None:
    """Some microbatch, a divisor of the global batch, must give every rank its share."""
    fixed, per_rank = dict(constraints.fixed), constraints.microbatch_per_rank
    dp, batch = fixed.get("dp", 0), job.global_batch
    if dp > batch:
        raise BadInputError(
            f"--fix dp={dp}: a global batch of {batch} gives some ranks no sequence; lower dp or raise "
            "--global-batch"
        )
    if per_rank > batch or per_rank * dp > batch + dp - 1:
        ranks = f" x dp {dp}" if dp else ""
        raise BadInputError(
            f"--microbatch-per-rank {per_rank}{ranks}: one microbatch is more than the global batch of "
            f"{batch}; lower it or raise --global-batch"
        )
    sizes = divisors(batch)
    replicas = [dp] if dp else range(1, gpus + 1)
    if per_rank and not any(-(-size // r) == per_rank for r in replicas for size in sizes if size >= r):
        ranks = f" and dp={dp}" if dp else ""
        raise BadInputError(
            f"--microbatch-per-rank {per_rank}{ranks}: microbatches divide the global batch of {batch}, and "
            f"none of {_listed(sizes)} gives a rank {per_rank} at most; change one of the three"
        )
