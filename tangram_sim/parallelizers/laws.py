"""The laws that a layout keeps whatever the memory: what model, sequence and microbatch divide into.

They are found as values. Who asks puts them into words that fit what was given: an argument, a stage of
a plan file, one of many layouts that were tried.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

from tangram_sim.layouts import Layout
from tangram_sim.models import Model
from tangram_sim.parallelizers.layouts import divisors, expert_counts, expert_degrees, head_counts

_SHOWN = 10  # values listed in advice


@dataclass(frozen=True, slots=True)
class BrokenLaw:
    """A degree or option of a layout that violates a rule.

    `why` continues a sentence after name and value ("does not divide the 32 attention heads of gpt3-6.7b").
    `allowed` are the valid values with all else unchanged, ascending; empty where the rule knows none.
    """

    name: str
    value: int | str
    why: str
    allowed: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}={self.value} {self.why}"

    @property
    def advice(self) -> str:
        """Advice to append to `why`: the values to use instead; empty where there are none."""
        if not self.allowed:
            return ""
        return f"; give {'one of ' if len(self.allowed) > 1 else ''}{listed(self.allowed)}"


def listed(numbers: tuple[int, ...]) -> str:
    """The first ten numbers as text, with an ellipsis if there are more."""
    return ", ".join(map(str, numbers[:_SHOWN])) + (", ..." if len(numbers) > _SHOWN else "")


def tensor_law(model: Model, tp: int) -> BrokenLaw | None:
    """Violation of: all tensor-parallel ranks hold as many whole attention heads. None if satisfied."""
    for heads in head_counts(model):
        if heads % tp:
            why = f"does not divide the {heads} attention heads of {model.name}"
            return BrokenLaw("tp", tp, why, divisors(_common_heads(model)))
    return None


@lru_cache(maxsize=64)
def _common_heads(model: Model) -> int:
    return gcd(*head_counts(model))


def context_law(seq: int, cp: int) -> BrokenLaw | None:
    """Violation of: every context-parallel rank holds the same number of a sequence's `seq` tokens."""
    if seq % cp:
        return BrokenLaw("cp", cp, f"does not divide the sequence of {seq} tokens", divisors(seq))
    return None


def sequence_law(seq: int, tp: int, cp: int) -> BrokenLaw | None:
    """Violation of: sequence parallelism divides a rank's tokens evenly over its tensor-parallel group."""
    tokens = seq // cp
    if tokens % tp:
        return BrokenLaw("sequence_parallel", True, f"wants tp={tp} to divide the {tokens} tokens of a rank")
    return None


def expert_law(model: Model, ep: int, replicas: int = 0) -> BrokenLaw | None:
    """Violation of: expert-parallel ranks divide the `replicas` = dp x cp, and hold equal numbers of experts.

    `replicas` 0: undecided, only the experts are checked.
    """
    experts = expert_counts(model)
    allowed = expert_degrees(model, replicas) if replicas else divisors(gcd(*experts)) if experts else (1,)
    if ep in allowed:
        return None
    uneven = [count for count in experts if count % ep]
    if not experts:
        why = f"has nothing to share: {model.name} has no experts"
    elif uneven:
        why = f"does not divide the {uneven[0]} experts of {model.name}"
    else:
        why = f"does not divide dp x cp = {replicas}"
    return BrokenLaw("ep", ep, why, allowed)


def share_law(dp: int, microbatch: int) -> BrokenLaw | None:
    """Violation of: every data-parallel rank gets at least one sequence of a microbatch."""
    if dp > microbatch:
        return BrokenLaw("dp", dp, f"ranks share a microbatch of {microbatch} sequences: some would be idle")
    return None


def degree_laws(model: Model, seq: int, layout: Layout) -> Iterator[BrokenLaw]:
    """Yields the rules of model and sequence length that a layout's degrees violate."""
    found = (
        tensor_law(model, layout.tp),
        context_law(seq, layout.cp),
        sequence_law(seq, layout.tp, layout.cp) if layout.sequence_parallel else None,
        expert_law(model, layout.ep, layout.dp * layout.cp),
    )
    yield from (law for law in found if law)


def first_broken(
    model: Model, seq: int, layout: Layout, microbatch: int, fused_attention: bool
) -> BrokenLaw | None:
    """The first rule that a layout violates for this model, sequence, microbatch and attention kernel.

    Does not check `ep`: callers take it from `expert_degrees`.
    """
    sequence = sequence_law(seq, layout.tp, layout.cp) if layout.sequence_parallel else None
    broken = (
        tensor_law(model, layout.tp)
        or context_law(seq, layout.cp)
        or sequence
        or share_law(layout.dp, microbatch)
    )
    if broken is None and layout.recompute == "selective" and fused_attention:
        why = "saves nothing: the fused attention kernel stores no scores"
        return BrokenLaw("recompute", "selective", why)
    return broken
