"""GenTree: a plan for a collective on a tree of switches, built bottom up, one local plan per switch.

After the authors of arXiv:2409.04202 (shape of the algorithm; costs are derived in docs/models/gentree.md). A
plan for the leaves below a switch is either composed (the children's plans, then a local plan among them) or
flat (one plan over all leaves, whatever the tree). Both are priced by the bytes that each link carries.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf

import numpy as np

from tangram_sim.cost.genmodel import FIXED, OPS, LocalPlan, candidates
from tangram_sim.cost.switchtree import Tree
from tangram_sim.errors import BadInputError, unknown_name

FLAT = tuple(LocalPlan(name) for name in FIXED)
BY_LEVEL = ("colocated-ps", "ring", "halving-doubling")


@dataclass(frozen=True, slots=True)
class SwitchStep:
    """Local plan of one switch (or of identical switches), and seconds of both its directions."""

    switch: str
    level: int  # 1 = the lowest switches
    members: int  # children that take part, or leaves of a flat plan
    plan: LocalPlan
    flat: bool
    rearranged: bool
    seconds: float
    switches: int = 1


@dataclass(frozen=True, slots=True)
class TreePlan:
    """A plan over the leaves below a switch, and the distribution of blocks after its reduce-scatter."""

    seconds: float
    steps: tuple[SwitchStep, ...]
    largest_share: float  # of the buffer that one leaf owns after the reduce-scatter
    # Largest product of a link's seconds per byte and the share of the buffer owned below it.
    density_s_per_byte: float


@dataclass
class _Planner:
    size: float
    op: str
    known: dict[Tree, tuple[TreePlan, TreePlan]] = field(default_factory=dict)

    def plans(self, tree: Tree) -> tuple[TreePlan, TreePlan]:
        """(fastest plan composed level by level, fastest plan of any form) for the leaves below `tree`."""
        if tree not in self.known:
            pure = self.composed(tree, [self.plans(child)[0] for child in tree.children])
            best = pure
            if tree.children:
                best = min(
                    (pure, self.composed(tree, [self.plans(child)[1] for child in tree.children])),
                    key=lambda plan: plan.seconds,
                )
                best = min((best, *(self.flat(tree, plan) for plan in FLAT)), key=lambda plan: plan.seconds)
            self.known[tree] = pure, best
        return self.known[tree]

    def composed(
        self, tree: Tree, below: Sequence[TreePlan], plans: Sequence[LocalPlan] | None = None
    ) -> TreePlan:
        """The children's plans in parallel, then the fastest local plan among the children."""
        members = len(tree.children) or tree.leaves
        links = [child.up_s_per_byte for child in tree.children] or [tree.at.beta_s_per_byte]
        shares = [plan.largest_share for plan in below] or [1.0]
        inner = [plan.density_s_per_byte for plan in below] or [0.0]
        first = max((plan.seconds for plan in below), default=0.0)
        steps = _merged(step for plan in below for step in plan.steps)
        density = max(map(max, zip(links, inner, strict=True)))
        if members == 1:
            return TreePlan(first, steps, shares[0], density)
        level = tree.depth
        as_is = min(
            (self._local(tree, plan, members, density, shares), index, plan)
            for index, plan in enumerate(plans or candidates(members))
        )
        seconds, rearranged, plan, share = as_is[0], False, as_is[2], max(shares)
        if min(shares) < max(shares) * (1 - 1e-12):
            # Gather blocks inside children of many owners, so that all children have as many.
            moved = self._rearranging(tree, shares)
            even = [max(shares)] * len(shares)
            thick = max(density, *(child.widest_leaf_s_per_byte * max(shares) for child in tree.children))
            option = min(
                (moved + self._local(tree, plan, members, thick, even), index, plan)
                for index, plan in enumerate(plans or candidates(members))
            )
            if option[0] < seconds:
                seconds, rearranged, plan, density = option[0], True, option[2], thick
        step = SwitchStep(tree.name, level, members, plan, flat=False, rearranged=rearranged, seconds=seconds)
        return TreePlan(first + seconds, _merged((*steps, step)), share / members, density / members)

    def _local(
        self, tree: Tree, plan: LocalPlan, members: int, density: float, shares: Sequence[float]
    ) -> float:
        """Seconds of a local plan in which block owners share a child's traffic over the links above them."""
        terms, at = plan.terms(members, self.size).of(self.op), tree.at
        share = max(shares)  # the leaf with the largest block is the last to finish
        senders = terms.senders * ceil(share / min(shares) - 1e-9)
        excess = max(senders - at.senders, 0.0)
        return (
            terms.rounds * at.alpha_s
            + terms.sent_bytes * density
            + share * terms.reduced_bytes * at.gamma_s_per_byte
            + share * terms.memory_bytes * at.delta_s_per_byte
            + share * terms.sent_bytes * excess * at.epsilon_s_per_byte
        )

    def _rearranging(self, tree: Tree, shares: Sequence[float]) -> float:
        worst, goal = 0.0, max(shares)
        for child, share in zip(tree.children, shares, strict=True):
            if share < goal * (1 - 1e-12):
                at, received = child.worst, (goal - share) * self.size
                senders = ceil(goal / share - 1e-9) - 1
                excess = max(senders - at.senders, 0.0)
                seconds = at.alpha_s + received * (
                    child.slowest_link_s_per_byte * max(child.size * share, 1.0)
                    + excess * at.epsilon_s_per_byte
                )
                worst = max(worst, seconds)
        return 2 * worst  # and back: only an all-reduce may have owners of unequal blocks (`_answers`)

    def flat(self, tree: Tree, plan: LocalPlan) -> TreePlan:
        """A single plan over all leaves below, in the tree's order, whatever the switches."""
        n, at = tree.size, tree.worst
        terms = plan.terms(n, self.size).of(self.op)
        sending = _FLAT_LINKS[plan.name](tree, self.size) / (1 if self.op == "all_reduce" else 2)
        excess = max(terms.senders - at.senders, 0.0)
        seconds = (
            terms.rounds * at.alpha_s
            + sending
            + terms.reduced_bytes * at.gamma_s_per_byte
            + terms.memory_bytes * at.delta_s_per_byte
            + excess * terms.sent_bytes * at.epsilon_s_per_byte
        )
        step = SwitchStep(tree.name, tree.depth, n, plan, flat=True, rearranged=False, seconds=seconds)
        one_root = plan.name == "reduce-broadcast"
        density = max(
            [tree.widest_leaf_s_per_byte * (1.0 if one_root else 1 / n)]
            + [beta * (1.0 if one_root else (stop - first) / n) for first, stop, beta in tree.uplinks()]
        )
        return TreePlan(seconds, (step,), 1.0 if one_root else 1 / n, density)


def _flat_ring(tree: Tree, size: float) -> float:
    # In the tree's order every link carries one block per step and direction.
    n = tree.size
    return 2 * (n - 1) / n * size * tree.slowest_link_s_per_byte


def _flat_direct(tree: Tree, size: float) -> float:
    n = tree.size
    worst = (n - 1) / n * tree.widest_leaf_s_per_byte
    for first, stop, beta in tree.uplinks():
        worst = max(worst, beta * (stop - first) * (n - stop + first) / n)
    return 2 * size * worst


def _flat_root(tree: Tree, size: float) -> float:
    # The first leaf is the root: all of its path carries what the others send.
    n = tree.size
    if n < 2:
        return 0.0
    first_leaf = tree
    while first_leaf.children:
        first_leaf = first_leaf.children[0]
    worst = max((n - 1) * first_leaf.at.beta_s_per_byte, tree.widest_leaf_s_per_byte)
    for first, stop, beta in tree.uplinks():
        worst = max(worst, beta * (n - stop if first == 0 else stop - first))
    return 2 * size * worst


def _flat_halving(tree: Tree, size: float) -> float:
    # Nearest partners first, so that the largest blocks stay low in the tree.
    n = tree.size
    if n < 2:
        return 0.0
    power = 1 << (n.bit_length() - 1)
    extra = n - power
    # The first 2 x extra leaves fold in neighbouring pairs; the even ones of them go on.
    active = np.concatenate((np.arange(0, 2 * extra, 2), np.arange(2 * extra, n)))
    links = list(tree.uplinks())
    leaf = tree.widest_leaf_s_per_byte
    rank = np.arange(power)
    starts = np.searchsorted(active, [first for first, _, _ in links])
    stops = np.searchsorted(active, [stop for _, stop, _ in links])
    betas = np.array([beta for _, _, beta in links])
    total, distance, block = 0.0, 1, size / 2
    while distance < power:
        # How many members of [start, stop) have their partner outside: count by prefix sums over both edges.
        partner = rank ^ distance
        worst = leaf
        for start, stop, beta in zip(starts, stops, betas, strict=True):
            out = partner[start:stop]
            worst = max(worst, float(beta) * int(np.count_nonzero((out < start) | (out >= stop))))
        total, distance, block = total + block * worst, 2 * distance, block / 2
    if extra:
        total *= (n - 1) / n / ((power - 1) / power)  # the plan table counts all ranks in this part
        folded = [
            b
            for first, stop, b in links
            if (first < 2 * extra and first % 2) or (stop < 2 * extra and stop % 2)
        ]
        total += size * max([leaf, *folded])
    return 2 * total


_FLAT_LINKS: dict[str, Callable[[Tree, float], float]] = {
    "ring": _flat_ring,
    "colocated-ps": _flat_direct,
    "reduce-broadcast": _flat_root,
    "halving-doubling": _flat_halving,
}


def _merged(steps: Iterable[SwitchStep]) -> tuple[SwitchStep, ...]:
    """Steps with identical ones of identical switches merged, lowest level first."""
    found: dict[tuple[object, ...], SwitchStep] = {}
    for step in steps:
        key = (step.switch, step.level, step.members, step.plan, step.flat, step.rearranged, step.seconds)
        before = found.get(key)
        many = step.switches + (before.switches if before else 0)
        found[key] = replace(step, switches=many)
    return tuple(sorted(found.values(), key=lambda step: step.level))


def gentree(tree: Tree, size: float, op: str = "all_reduce") -> TreePlan:
    """The plan that GenTree finds for a buffer of `size` bytes; never slower than any of `fixed_plans`.

    Raises BadInputError for a size that is not above zero, UnknownNameError for another `op`.
    """
    _check(size, op)
    planner = _Planner(size, op)
    found = planner.plans(tree)
    flat = [planner.flat(tree, plan) for plan in FLAT] if tree.children else []
    return min((plan for plan in (*found, *flat) if _answers(plan, tree, op)), key=lambda plan: plan.seconds)


def _answers(plan: TreePlan, tree: Tree, op: str) -> bool:
    """Whether a plan implements the requested collective.

    An all-reduce may place its intermediate blocks anywhere; the other two require that every leaf owns an
    equal block, which plans composed over unequal subtrees do not provide.
    """
    return op == "all_reduce" or plan.largest_share * tree.size <= 1 + 1e-9


def fixed_plans(tree: Tree, size: float, op: str = "all_reduce") -> dict[str, TreePlan]:
    """Plans that ignore the tree's shape: flat plans, and the same plan at every level; by name."""
    _check(size, op)
    names = [*FIXED, *(f"hierarchical-{name}" for name in BY_LEVEL if tree.children)]
    found = {name: _fixed(name, tree, size, op) for name in names}
    return {name: plan for name, plan in found.items() if _answers(plan, tree, op)}


def fixed_plan(name: str, tree: Tree, size: float, op: str = "all_reduce") -> TreePlan:
    """One of `fixed_plans`; hierarchical ones use the same plan at every level.

    Raises BadInputError where the plan does not implement `op` on this tree.
    """
    _check(size, op)
    plan = _fixed(name, tree, size, op)
    if not _answers(plan, tree, op):
        raise BadInputError(
            f"{name} leaves unequal blocks on this tree, so it is no {op}; known here: "
            f"{', '.join(fixed_plans(tree, size, op))}"
        )
    return plan


def _fixed(name: str, tree: Tree, size: float, op: str) -> TreePlan:
    planner = _Planner(size, op)
    if name in FIXED:
        return planner.flat(tree, LocalPlan(name))
    if name.removeprefix("hierarchical-") not in BY_LEVEL:
        raise unknown_name("fixed plan", name, [*FIXED, *(f"hierarchical-{item}" for item in BY_LEVEL)])
    only = (LocalPlan(name.removeprefix("hierarchical-")),)
    known: dict[Tree, TreePlan] = {}

    def solve(tree: Tree) -> TreePlan:
        if tree not in known:
            known[tree] = planner.composed(tree, [solve(child) for child in tree.children], only)
        return known[tree]

    return solve(tree)


def _check(size: float, op: str) -> None:
    if op not in OPS:
        raise unknown_name("collective", op, OPS)
    if not 0 < size < inf:
        raise BadInputError(f"{size:g} bytes given; give a finite size above zero")
