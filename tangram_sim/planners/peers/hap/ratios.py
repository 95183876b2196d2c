"""Shares of the devices by linear programming (HiGHS), and programs and shares optimised in turn.

    min  sum_c u_c + v     u_c >= F_c B_k / f_ck     v >= P B_k     sum_k n_k B_k = 1     S B_k <= M_k - fixed

over kinds k of devices and speed classes c of operations; the program's load gives the coefficients. Devices
of a kind get equal shares; that loses nothing, since averaging over them raises no maximum.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tangram_sim.planners.peers.hap.graph import Operation, by_class
from tangram_sim.planners.peers.hap.machine import DeviceLoad, Machine
from tangram_sim.planners.peers.hap.rules import ProgramSpace
from tangram_sim.planners.peers.hap.synthesis import SynthesizedProgram, Synthesizer

_ROUNDS = 10
_FALLS = 1.0 - 1e-9  # what counts as falling


def best_shares(bill: DeviceLoad, machine: Machine) -> tuple[float, ...] | None:
    """Share of one device of every kind that makes a step shortest; None where no shares fit memory."""
    from scipy.optimize import linprog  # half a second to import: only where a program is balanced

    kinds, classes = len(machine.counts), len(machine.speeds)
    width = kinds + classes + 1
    rows, limits = list[list[float]](), list[float]()
    padded = bill.padded_s(machine)
    for kind in range(kinds):
        for item, (flop, row) in enumerate(zip(bill.shared_flop, machine.speeds, strict=True)):
            rows.append(_row(width, {kind: flop / row[kind], kinds + item: -1.0}))
            limits.append(0.0)
        rows.append(_row(width, {kind: padded, width - 1: -1.0}))
        limits.append(0.0)
        if machine.memory_bytes:
            scale = machine.memory_bytes[kind]
            fixed, shared = bill.memory_of(machine, kind)
            if fixed > scale:
                return None
            rows.append(_row(width, {kind: shared / scale}))
            limits.append(1.0 - fixed / scale)
    costs = [0.0] * kinds + [1.0] * (classes + 1)
    total = [_row(width, dict(enumerate(map(float, machine.counts))))]
    found = linprog(costs, np.array(rows), limits, total, [1.0], bounds=(0.0, None), method="highs")
    if not found.success:
        return None
    shares = [max(float(item), 0.0) for item in found.x[:kinds]]
    total_share = sum(count * share for count, share in zip(machine.counts, shares, strict=True))
    return tuple(share / total_share for share in shares)


def _row(width: int, entries: dict[int, float]) -> list[float]:
    row = [0.0] * width
    for place, value in entries.items():
        row[place] = value
    return row


@dataclass(frozen=True)
class Balanced:
    """A program, its load, the shares of the devices by kind, and the seconds of a step with them."""

    program: SynthesizedProgram
    bill: DeviceLoad
    shares: tuple[float, ...]
    seconds: float


def in_turn(ops: Sequence[Operation], machine: Machine, space: ProgramSpace) -> Balanced | None:
    """A program and shares, optimised in turn while that helps, from shares in proportion to speed.

    None where the first program fits memory under no shares.
    """
    work = dict(by_class(ops))
    shares = machine.proportional([work.get(index, 0.0) for index in range(len(machine.speeds))])
    best: Balanced | None = None
    for _ in range(_ROUNDS):
        program = Synthesizer(ops, machine, shares, space).best()
        found = balanced(program, machine) if program is not None else None
        if found is None or (best is not None and found.seconds >= best.seconds * _FALLS):
            return best
        best, shares = found, found.shares
    return best


def balanced(program: SynthesizedProgram, machine: Machine) -> Balanced | None:
    """The program with its optimal shares; None where it fits memory under no shares."""
    found: Balanced | None = None
    for _ in range(_ROUNDS):  # collectives are padded or grouped anew for the shares that they led to
        bill = program.bill(machine)
        shares = best_shares(bill, machine)
        seconds = bill.seconds(machine, shares) if shares is not None else float("inf")
        if shares is None or (found is not None and seconds >= found.seconds * _FALLS):
            return found
        found = Balanced(program, bill, shares, seconds)
        program = replace(program, largest=max(shares))
    return found
