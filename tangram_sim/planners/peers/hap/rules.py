"""Distribution of tensors over devices, rules that compute operations on them, and conversions between them.

A relation says how a tensor is distributed and how its gradient comes back (so one forward program fixes the
whole step): WHOLE, every device has all of it, gradients too; CUT along batch, sequence or features, each
device has its share of both; PARTIAL, the sum over devices is the tensor, the gradient is whole; FAN, the
tensor is whole and the sum of the gradients is its gradient. A rule is HAP's triple {inputs} op {output}.
"""

from dataclasses import dataclass
from functools import lru_cache

WHOLE, PARTIAL, FAN = "whole", "partial", "fan"
BATCH, SEQUENCE, FEATURES = "cut batch", "cut sequence", "cut features"
CUTS = (BATCH, SEQUENCE, FEATURES)

GATHER, SCATTER, REDUCE, EXCHANGE = "all-gather", "reduce-scatter", "all-reduce", "all-to-all"

DATA, GATHERED, FEATURE, REPLICATED = "data", "gathered", "feature", "replicated"
FACTORS = "factors"  # data, without a reduction of gradients: see `machine.bill_of_rule`


@dataclass(frozen=True, slots=True)
class Rule:
    """{`needs` of the inputs} op {`gives`}; weights are held `whole`, `cut` by the shares, or `gathered`.

    `shared`: each device computes its share; otherwise every device computes everything. `family` is the name
    of the rule's parallelism in a plan; empty where the rule goes with any.
    """

    needs: tuple[str, ...]
    gives: str
    shared: bool
    weights: str = ""
    family: str = ""


@dataclass(frozen=True, slots=True)
class ProgramSpace:
    """Restrictions on the programs that are searched.

    The published code has neither `contracting` (row-parallel linears) nor `heads` (attention on a subset of
    the heads), so it cannot find Megatron's tensor parallelism. With `by_block` all operations with weights
    of one block belong to one family, as a layout requires.
    """

    families: tuple[str, ...] = (DATA, GATHERED, FEATURE, REPLICATED, FACTORS)
    contracting: bool = True
    heads: bool = True
    sequence: bool = True
    by_block: bool = False


PUBLISHED = ProgramSpace(families=(DATA, FEATURE, REPLICATED), contracting=False, heads=False)


@lru_cache(maxsize=256)
def rules_of(kind: str, inputs: int, space: ProgramSpace) -> tuple[Rule, ...]:
    """Rules for an operation of this kind with this many inputs."""
    rows = (BATCH, SEQUENCE) if space.sequence else (BATCH,)
    found: list[Rule] = []
    if kind in ("linear", "embedding"):
        found.append(Rule((WHOLE,) * inputs, WHOLE, shared=False, weights="whole", family=REPLICATED))
        for family, weights in ((DATA, "whole"), (GATHERED, "gathered")):
            found += [Rule((cut,) * inputs, cut, shared=True, weights=weights, family=family) for cut in rows]
        found.append(Rule((FAN,) * inputs, FEATURES, shared=True, weights="cut", family=FEATURE))
        if kind == "linear":
            needs_rows = [(cut,) * inputs for cut in rows]
            found += [
                Rule(needs_row, needs_row[0], shared=True, weights="whole", family=FACTORS)
                for needs_row in needs_rows
            ]
        if space.contracting:  # an embedding cut by vocabulary, a linear cut by its inputs
            needs = (FEATURES,) * inputs
            found.append(Rule(needs, PARTIAL, shared=True, weights="cut", family=FEATURE))
        found = [rule for rule in found if rule.family in space.families]
    elif kind == "attention":
        found += [Rule((WHOLE,), WHOLE, shared=False), Rule((BATCH,), BATCH, shared=True)]
        if space.heads:
            found.append(Rule((FEATURES,), FEATURES, shared=True))
    else:
        cuts = rows if kind == "norm" or (kind == "loss" and not space.contracting) else (*rows, FEATURES)
        found.append(Rule((WHOLE,) * inputs, WHOLE, shared=False))
        found += [Rule((cut,) * inputs, cut, shared=True) for cut in cuts]
        if kind == "add":
            found.append(Rule((PARTIAL,) * inputs, PARTIAL, shared=False))
    return tuple(found)


@lru_cache(maxsize=64)
def conversion(source: str, target: str) -> tuple[str, ...] | None:
    """Collectives, forward and backward, that convert one relation to another; None where impossible.

    A backward collective is the adjoint of the forward one; taking a share of a whole tensor is free.
    """
    if source == target:
        return ()
    if source == FAN or target == PARTIAL:
        return None
    ways = {
        (WHOLE, FAN): (REDUCE,),
        (PARTIAL, WHOLE): (REDUCE,),
        (PARTIAL, FAN): (REDUCE, REDUCE),
    }
    if (source, target) in ways:
        return ways[source, target]
    if source in CUTS:
        return {WHOLE: (GATHER,), FAN: (GATHER, SCATTER)}.get(target, (EXCHANGE, EXCHANGE))
    return (GATHER,) if source == WHOLE else (SCATTER, GATHER)
