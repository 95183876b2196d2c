"""Aceso's configurations of one slice: inner cuts, and two strategies for each stage.

A stage is (front, back): its first blocks under one strategy of the menu, the others under another. Most
often the two differ only in recomputation, and the first blocks are as many as memory requires.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.alleviation import Cost
from tangram_sim.parallelizers.layouts import divisors
from tangram_sim.parallelizers.menu import Menu, Run, Sides

Stage: TypeAlias = tuple[int, int]  # strategies of the front and of the back blocks
Config: TypeAlias = tuple[tuple[int, ...], tuple[Stage, ...]]  # inner cuts, stages

_SAVERS = ("none", "selective", "full")  # by what they save
# What a move lowers, by primitive; everything else is tried last.
_LOWERS = {
    "dec_op": ("compute", "memory", "recompute"),
    "inc_tp": ("memory", "recompute"),
    "inc_cp": ("memory", "recompute"),
    "inc_zero": ("memory", "recompute"),
    "inc_ep": ("memory", "recompute"),
    "inc_dp": ("loss",),
    "dec_zero": ("loss",),
    "dec_ep": ("loss",),
    "algo": ("loss", "memory"),
    "recompute": ("recompute", "memory"),
}


class Priced(NamedTuple):
    """One stage of a configuration."""

    blocks: int  # under the front strategy
    seconds: float  # of one microbatch
    tail_s: float  # once per step
    short_bytes: float  # missing, 0 where it fits


class Strategies:
    """The strategies of a menu by number, and the strategies one move away from each."""

    def __init__(self, menu: Menu) -> None:
        self.layouts = menu.layouts
        self.number = {layout: index for index, layout in enumerate(menu.layouts)}
        self._near: dict[int, tuple[tuple[str, int], ...]] = {}
        self._kinds = [
            {kind: self.number.get(replace(layout, recompute=kind)) for kind in _SAVERS}
            for layout in menu.layouts
        ]

    def near(self, index: int) -> tuple[tuple[str, int], ...]:
        """(primitive, strategy number) of all strategies one move away."""
        if index not in self._near:
            found = dict.fromkeys(
                (name, self.number[layout])
                for name, layout in _neighbours(self.layouts[index])
                if layout in self.number
            )
            self._near[index] = tuple(found)
        return self._near[index]

    def saver(self, index: int, kind: str) -> int | None:
        """Number of this strategy with recomputation `kind`; None where it is not on the menu."""
        return self._kinds[index][kind]

    def pair(self, index: int) -> Stage:
        """(saving, plain) strategies of a stage that recomputes as many blocks as memory requires."""
        kinds = [found for kind in _SAVERS if (found := self.saver(index, kind)) is not None]
        return kinds[-1], kinds[0]

    def of(self, index: int, kind: str) -> int:
        """`saver`, or the strategy itself where that kind is not on the menu."""
        found = self.saver(index, kind)
        return index if found is None else found


def _neighbours(layout: Layout) -> Iterator[tuple[str, Layout]]:
    """(primitive, layout) one move away: degrees exchanged, ZeRO, experts, sequence parallelism."""
    degrees = {"tp": layout.tp, "cp": layout.cp, "dp": layout.dp}
    for source, target in (
        ("dp", "tp"),
        ("tp", "dp"),
        ("dp", "cp"),
        ("cp", "dp"),
        ("cp", "tp"),
        ("tp", "cp"),
    ):
        for factor in divisors(degrees[source])[1:]:
            moved = dict(degrees)
            moved[source] //= factor
            moved[target] *= factor
            for sharded in (layout.sequence_parallel, moved["tp"] > 1):
                if sharded and moved["tp"] == 1:
                    continue
                replicas = moved["dp"] * moved["cp"]
                for zero in dict.fromkeys((layout.zero_stage if replicas > 1 else 0, 0, 1)):
                    for ep in dict.fromkeys((layout.ep, *([replicas] if layout.ep > 1 else []))):
                        tp, cp, dp = moved["tp"], moved["cp"], moved["dp"]
                        yield (
                            f"inc_{target}",
                            Layout(
                                tp,
                                dp,
                                cp,
                                ep,
                                pp=1,
                                zero_stage=zero,
                                recompute=layout.recompute,
                                sequence_parallel=sharded,
                            ),
                        )
    for zero in range(4):
        if zero != layout.zero_stage:
            yield (
                "inc_zero" if zero > layout.zero_stage else "dec_zero",
                replace(layout, zero_stage=zero),
            )
    for ep in divisors(layout.dp * layout.cp):
        if ep != layout.ep:
            yield "inc_ep" if ep > layout.ep else "dec_ep", replace(layout, ep=ep)
    if layout.tp > 1:
        yield "algo", replace(layout, sequence_parallel=not layout.sequence_parallel)


class Bottlenecks:
    """Aceso's search space for one request, with `held` microbatches in flight in each inner stage."""

    def __init__(
        self, menu: Menu, strategies: Strategies, held: Sequence[int], microbatches: int, room: float
    ) -> None:
        self.menu, self.strategies = menu, strategies
        self.held, self.microbatches, self.room = tuple(held), microbatches, room
        self._stages: dict[tuple[int, int, int, Stage], Priced] = {}
        self._sides: dict[tuple[int, int], Sides] = {}

    def stage(self, low: int, high: int, held: int, stage: Stage) -> Priced:
        """Price of one stage, with its blocks split between the two strategies where that is fastest."""
        key = (low, high, held, stage)
        if key not in self._stages:
            from tangram_sim.parallelizers.kernels import best_split

            found = best_split(
                *self.sides(low, high), self.menu.switch_s, *stage, held, self.microbatches, self.room
            )
            self._stages[key] = Priced(*found)
        return self._stages[key]

    def sides(self, low: int, high: int) -> Sides:
        """Prices of both sides of every cut of atoms [low, high), under every strategy."""
        if (low, high) not in self._sides:
            self._sides[low, high] = self.menu.sides(low, high)
        return self._sides[low, high]

    def stages(self, config: Config) -> list[Priced]:
        """Prices of all stages of a configuration."""
        cuts, chosen = config
        return [
            self.stage(low, high, held, stage)
            for (low, high), held, stage in zip(pairwise(cuts), self.held, chosen, strict=True)
        ]

    def cost(self, config: Config) -> Cost:
        """(bytes missing, seconds): sum t + (m - 1) max t + the longest synchronisation and update."""
        stages = self.stages(config)
        seconds = [stage.seconds for stage in stages]
        step_s = sum(seconds) + (self.microbatches - 1) * max(seconds) + max(item.tail_s for item in stages)
        return sum(stage.short_bytes for stage in stages), step_s

    def bottlenecks(self, config: Config) -> list[int]:
        """Stage numbers, the fullest first while one does not fit, else the slowest first."""
        stages = self.stages(config)
        key = [(-stage.short_bytes, -stage.seconds, place) for place, stage in enumerate(stages)]
        return [place for _, _, place in sorted(key)]

    def groups(self, config: Config, stage: int) -> Iterator[list[tuple[str, Config]]]:
        """Moves grouped by the resource they reduce; first that of which the stage has the largest share."""
        moves = list(self._moves(config, stage))
        left = list(range(len(moves)))
        for resource in self._resources(config, stage):
            chosen = [move for move in left if resource in _LOWERS.get(moves[move][0], ())]
            left = [move for move in left if move not in chosen]
            if chosen:
                yield [moves[move] for move in chosen]
        if left:
            yield [moves[move] for move in left]

    def _resources(self, config: Config, stage: int) -> list[str]:
        priced = self.stages(config)
        if priced[stage].short_bytes > 0:
            return ["memory", "compute", "loss", "recompute"]
        used: dict[str, list[float]] = {"compute": [], "loss": [], "recompute": []}
        cuts, chosen = config
        for place, (low, high) in enumerate(pairwise(cuts)):
            sides = self.sides(low, high)
            ideal = float(sides.front_s[:, -1].min())
            recompute = max(priced[place].seconds - float(sides.front_s[chosen[place][1], -1]), 0.0)
            used["compute"].append(ideal)
            used["recompute"].append(recompute)
            used["loss"].append(max(priced[place].seconds - ideal - recompute, 0.0))
        share = {
            name: (each[stage] / sum(each) if sum(each) else 0.0, each[stage]) for name, each in used.items()
        }
        return sorted(share, key=lambda name: (-share[name][0], -share[name][1]))

    def _moves(self, config: Config, stage: int) -> Iterator[tuple[str, Config]]:
        cuts, chosen = config
        front, back = chosen[stage]

        def with_stage(changed: Stage) -> Config:
            return cuts, (*chosen[:stage], changed, *chosen[stage + 1 :])

        def everywhere(changed: Stage) -> Config:
            return cuts, tuple(changed if item == (front, back) else item for item in chosen)

        yield from self._dec_op(config, stage)
        strategies = self.strategies
        kinds = (strategies.layouts[front].recompute, strategies.layouts[back].recompute)
        for name, near in strategies.near(back):
            changed = (strategies.of(near, kinds[0]), strategies.of(near, kinds[1]))
            yield name, with_stage(changed)
            if len(chosen) > 1:
                yield name, everywhere(changed)
        for kind in _SAVERS:
            for changed in ((strategies.of(front, kind), back), (front, strategies.of(back, kind))):
                if changed != (front, back):
                    yield "recompute", with_stage(changed)
                    if len(chosen) > 1:
                        yield "recompute", everywhere(changed)
        # Runs of blocks from either end under other degrees.
        for _, near in strategies.near(front):
            yield "flip", with_stage((near, back))
        for _, near in strategies.near(back):
            yield "flip", with_stage((front, near))

    def _dec_op(self, config: Config, stage: int) -> Iterator[tuple[str, Config]]:
        """Moves of 1, 2, a quarter or half of a stage's atoms to another, through the stages between."""
        cuts, chosen = config
        atoms = cuts[stage + 1] - cuts[stage]
        for other in range(len(chosen)):
            for count in dict.fromkeys((1, 2, atoms // 4, atoms // 2)):
                if other == stage or not 0 < count < atoms:
                    continue
                moved = list(cuts)
                if other > stage:
                    moved[stage + 1 : other + 1] = [cut - count for cut in moved[stage + 1 : other + 1]]
                else:
                    moved[other + 1 : stage + 1] = [cut + count for cut in moved[other + 1 : stage + 1]]
                yield "dec_op", (tuple(moved), chosen)

    def runs(self, config: Config) -> list[tuple[Run, ...]]:
        """The runs of layers of every inner stage."""
        cuts, chosen = config
        found: list[tuple[Run, ...]] = []
        for (low, high), (front, back), priced in zip(
            pairwise(cuts), chosen, self.stages(config), strict=True
        ):
            blocks = self.sides(low, high).front_s.shape[1] - 1
            if priced.blocks == 0 or front == back:
                found.append(((low, high, back),))
            elif priced.blocks == blocks:
                found.append(((low, high, front),))
            else:
                cut = low + priced.blocks + (low == 0)
                found.append(((low, cut, front), (cut, high, back)))
        return found
