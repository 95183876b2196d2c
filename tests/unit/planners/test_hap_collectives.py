"""HAP's collectives by size and its sufficient factors, on its testbed's profile."""

from dataclasses import replace

import pytest

from tangram_sim.planners.peers.hap.graph import Operation
from tangram_sim.planners.peers.hap.machine import Machine, bill_of_conversion, bill_of_rule
from tangram_sim.planners.peers.hap.ratios import in_turn
from tangram_sim.planners.peers.hap.rules import (
    BATCH,
    DATA,
    EXCHANGE,
    FACTORS,
    GATHER,
    REDUCE,
    SCATTER,
    ProgramSpace,
    rules_of,
)

# 16 V100 and 48 P100, profiled by the authors in FLOP/s and bytes/s of full buffers.
DEVICES, SPEEDS = 64, (3.859e12, 2.149e12)
PADDED = {GATHER: 9.463e9, SCATTER: 9.740e9, EXCHANGE: 24.59e9}
GROUPED = {GATHER: 9.146e9, SCATTER: 8.757e9}
_RING = (DEVICES - 1) / DEVICES
TESTBED = Machine(
    (16, 48),
    (SPEEDS,),
    {**{name: rate * _RING for name, rate in PADDED.items()}, REDUCE: 2 * _RING * 5.906e9},
    GROUPED,
)
LARGEST = TESTBED.proportional([1.0])[0]


def test_shares_of_the_testbed_follow_its_speeds() -> None:
    assert TESTBED.proportional([1.0]) == pytest.approx((0.02340, 0.01303), abs=1e-4)


@pytest.mark.parametrize(("name", "gain", "crossing"), [(GATHER, 1.447, 1.0347), (SCATTER, 1.346, 1.1123)])
def test_grouped_collectives_are_chosen_by_the_largest_share(name: str, gain: float, crossing: float) -> None:
    tensor = Operation("linear", (), 0.0, 1e9)

    def seconds(machine: Machine, largest: float) -> float:
        bill = bill_of_conversion(tensor, (name,), machine, largest)
        return bill.fixed_s + bill.padded_s(machine) * largest

    padded = replace(TESTBED, grouped_bytes_per_s={})
    assert seconds(padded, LARGEST) / seconds(TESTBED, LARGEST) == pytest.approx(gain, abs=1e-3)
    for share, is_grouped in ((crossing * 0.9999, False), (crossing * 1.0001, True)):
        found = TESTBED.grouped_s(name, 1e9, share / DEVICES, 1)
        assert (found is not None) == is_grouped
    # Launching a broadcast a device can eat the gain up.
    slow = replace(TESTBED, launch_s=1.0)
    assert slow.grouped_s(name, 1e9, LARGEST, 1) is None


def test_equal_devices_pad_everywhere() -> None:
    equal = Machine((8,), ((1e12,),), dict.fromkeys((GATHER, SCATTER, REDUCE, EXCHANGE), 5e9))
    both = replace(equal, grouped_bytes_per_s={GATHER: 5e9, SCATTER: 5e9})
    ops = dense(64)
    space = ProgramSpace()
    assert in_turn(ops, both, space) == in_turn(ops, equal, space)


def dense(samples: int) -> tuple[Operation, ...]:
    """Inputs and VGG19's first dense layer, 25088 x 4096 in 32 bits."""
    wide, out = 25088, 4096
    weights = 4.0 * wide * out
    return (
        Operation("elementwise", (), 0.0, 4.0 * samples * wide),
        Operation("linear", (0,), 2.0 * samples * wide * out, 4.0 * samples * out, weights, weights),
        Operation("loss", (1,), 0.0, 0.0),
    )


@pytest.mark.parametrize(("samples", "factors_ms", "reduced_ms"), [(512, 55.5, 70.2), (1024, 111.0, 70.9)])
def test_sufficient_factors_of_the_first_dense_layer_of_vgg19(
    samples: int, factors_ms: float, reduced_ms: float
) -> None:
    """Beside what both do in shares: two thirds of the layer's FLOP."""
    ops, shares = dense(samples), TESTBED.proportional([1.0])
    op, inputs = ops[1], [ops[0]]
    rules = {rule.family: rule for rule in rules_of("linear", 1, ProgramSpace(sequence=False)) if rule.shared}
    bills = {name: bill_of_rule(op, rules[name], inputs, TESTBED, LARGEST) for name in (FACTORS, DATA)}
    both_s = 2 * op.flop * LARGEST / SPEEDS[0]
    found = {name: (bill.seconds(TESTBED, shares) - both_s) * 1e3 for name, bill in bills.items()}
    assert found[FACTORS] == pytest.approx(factors_ms, rel=2e-3)
    assert found[DATA] == pytest.approx(reduced_ms, rel=2e-3)
    chosen = in_turn(ops, TESTBED, ProgramSpace(families=(DATA, FACTORS), sequence=False))
    assert chosen is not None
    assert chosen.program.choices[1].rule.family == (FACTORS if factors_ms < reduced_ms else DATA)
    assert chosen.program.choices[1].rule.gives == BATCH


@pytest.mark.parametrize(
    ("wide", "out", "bound"), [(25088, 4096, 7042), (768, 3072, 1229), (4096, 11008, 5970)]
)
def test_factors_move_less_only_below_a_number_of_samples(wide: int, out: int, bound: int) -> None:
    """With free compute on equal links: below 2KN / (K + N); language models have more tokens a step."""
    free = Machine((8,), ((1e30,),), dict.fromkeys((GATHER, SCATTER, REDUCE, EXCHANGE), 5e9))
    rules = {rule.family: rule for rule in rules_of("linear", 1, ProgramSpace(sequence=False)) if rule.shared}
    for samples, pays in ((bound - 2, True), (bound + 2, False)):
        inputs = [Operation("elementwise", (), 0.0, 4.0 * samples * wide)]
        op = Operation("linear", (0,), 1.0, 4.0 * samples * out, 4.0 * wide * out, 4.0 * wide * out)
        costs = [
            bill_of_rule(op, rules[name], inputs, free).seconds(free, free.even()) for name in (FACTORS, DATA)
        ]
        assert (costs[0] < costs[1]) == pays
