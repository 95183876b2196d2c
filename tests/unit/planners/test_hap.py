"""HAP: its search against every program, its linear program against a grid, and its acceptance."""

from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from tangram_sim.models import Attention, Block, FeedForward, Model
from tangram_sim.planners.peers.hap.candidates import candidates, pipeline_of, whole_sequences
from tangram_sim.planners.peers.hap.graph import Operation, graph_of
from tangram_sim.planners.peers.hap.machine import DeviceLoad, Machine, bill_of_conversion, bill_of_rule
from tangram_sim.planners.peers.hap.planner import Hap
from tangram_sim.planners.peers.hap.ratios import balanced, best_shares, in_turn
from tangram_sim.planners.peers.hap.rules import (
    BATCH,
    DATA,
    EXCHANGE,
    FAN,
    FEATURE,
    FEATURES,
    GATHER,
    PARTIAL,
    PUBLISHED,
    REDUCE,
    SCATTER,
    SEQUENCE,
    WHOLE,
    ProgramSpace,
    conversion,
    rules_of,
)
from tangram_sim.planners.peers.hap.synthesis import Synthesizer
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan
from tests.contracts.test_planner_contract import MIXED, ODD, question, small_model

RELATIONS = (WHOLE, PARTIAL, FAN, BATCH, SEQUENCE, FEATURES)
COLLECTIVES = (GATHER, SCATTER, REDUCE, EXCHANGE)


def model_of(layers, hidden):
    width = FeedForward(4 * hidden, gated=False, bias=True)
    block = Block(Attention(16, 16, hidden // 16, hidden // 16), width, norm_bias=True)
    return Model("gpt", "gpt", hidden, 32000, (block,) * layers)


def machine(rate=10e9, **given):
    """4 devices of 156 TFLOP/s and 12 of 35, as in the recorded run."""
    return Machine((4, 12), ((156e12, 35e12),) * 3, dict.fromkeys(COLLECTIVES, rate), **given)


def test_compute_bound_ratios_are_proportional_to_speed():
    """The recorded run: 4 devices of 156 and 12 of 35 get .1494 and .0335 each."""
    job = Job(1024, 1024, "fp16")
    found = in_turn(graph_of(model_of(4, 1536), job, 1024), machine(rate=1e16), ProgramSpace())
    assert found.shares == pytest.approx((156 / 1044, 35 / 1044), rel=1e-6)
    assert [round(share, 4) for share in found.shares] == [0.1494, 0.0335]
    assert set(found.program.families()) == {DATA}


def collectives(program, block):
    names = [
        name
        for op, choice in zip(program.ops, program.choices, strict=True)
        if op.block == block
        for _, route in choice.routes
        for a, b in pairwise(route)
        for name in conversion(a, b)
    ]
    return {name: names.count(name) for name in COLLECTIVES}


@pytest.mark.parametrize("space", [PUBLISHED, ProgramSpace()], ids=["published rules", "all rules"])
def test_small_batches_of_wide_layers_switch_to_features(space):
    """Batch 8, 32 tokens, hidden 1536: data parallelism would reduce far more gradients than activations."""
    model = model_of(4, 1536)
    small = in_turn(graph_of(model, Job(8, 32, "fp16"), 8), machine(), space).program
    large = in_turn(graph_of(model, Job(1024, 1024, "fp16"), 1024), machine(), space).program
    assert set(large.families()) == {DATA}
    assert set(small.families()) == {FEATURE}
    for block in range(4):
        used = collectives(small, block)
        if space is PUBLISHED:  # every linear by columns: activations are gathered in every block
            assert used[GATHER] >= 2
            assert used[REDUCE] == 0
        else:  # by columns, then by rows: Megatron's, which the published rules cannot reach
            assert used[GATHER] == 0
            assert used[REDUCE] >= 2
        assert sum(collectives(large, block).values()) == 0


def steiner_s(tensor, produced, needed, devices, shares):
    """The cheapest tree of conversions from the relation that is produced to all that are needed."""
    others = [relation for relation in RELATIONS if relation not in (produced, *needed)]
    wanted = [item for item in needed if item != produced]
    best = float("inf")
    for extra in (combination for size in range(3) for combination in combinations(others, size)):
        nodes = [*wanted, *extra]
        for parents in product([produced, *nodes], repeat=len(nodes)):
            ways = [conversion(parent, node) for parent, node in zip(parents, nodes, strict=True)]
            if any(way is None or a == b for way, a, b in zip(ways, parents, nodes, strict=True)):
                continue
            parent_of = dict(zip(nodes, parents, strict=True))

            def rooted(node, parent_of=parent_of):
                for _ in parent_of:
                    node = parent_of.get(node, node)
                return node == produced

            if all(map(rooted, nodes)):
                bills = [bill_of_conversion(tensor, way, devices, max(shares)) for way in ways]
                best = min(best, sum(bill.seconds(devices, shares) for bill in bills))
    return best


def cheapest(ops, devices, shares, space):
    """Every assignment of rules to operations, every tree of conversions: the least cost of all."""
    known = {}
    best = float("inf")
    allowed = [rules_of(op.kind, len(op.inputs), space) for op in ops]
    alone = {
        (op, rule): bill_of_rule(op, rule, [ops[item] for item in op.inputs], devices, max(shares)).seconds(
            devices, shares
        )
        for op, rules in zip(ops, allowed, strict=True)
        for rule in rules
    }
    for rules in product(*allowed):
        total = sum(alone[item] for item in zip(ops, rules, strict=True))
        if total >= best:
            continue
        needed = [set() for _ in ops]
        for op, rule in zip(ops, rules, strict=True):
            for source, need in zip(op.inputs, rule.needs, strict=True):
                needed[source].add(need)
        for number, (rule, needs) in enumerate(zip(rules, needed, strict=True)):
            if not needs or total >= best:
                continue
            key = (number, rule.gives, frozenset(needs))
            if key not in known:
                known[key] = steiner_s(ops[number], rule.gives, sorted(needs), devices, shares)
            total += known[key]
        best = min(best, total)
    return best


def graph(seed):
    """Six operations, one tensor read twice, of random sizes."""
    random = np.random.default_rng(seed)
    shapes = [
        ("embedding", ()),
        ("linear", (0,)),
        ("attention" if seed % 2 else "elementwise", (1,)),
        ("linear", (2,)),
        ("add", (0, 3)),
        ("loss", (4,)),
    ]
    return tuple(
        Operation(
            kind,
            inputs,
            float(10 ** random.uniform(9, 13)),
            float(10 ** random.uniform(5, 9)),
            *((size := float(10 ** random.uniform(5, 9))), 2 * size),
        )
        if kind in ("linear", "embedding")
        else Operation(kind, inputs, float(10 ** random.uniform(7, 10)), float(10 ** random.uniform(5, 9)))
        for kind, inputs in shapes
    )


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_the_search_finds_the_cheapest_of_all_programs_of_six_operations(seed, grouped):
    ops = graph(seed)
    devices = Machine(
        (1, 3),
        ((100e12, 30e12),),
        dict(zip(COLLECTIVES, (3e9, 5e9, 4e9, 2e9), strict=True)),
        {GATHER: 4e9, SCATTER: 4.5e9} if grouped else {},
    )
    shares = [(0.25, 0.25), (0.55, 0.15), devices.proportional([1.0])][seed % 3]
    space = ProgramSpace(sequence=seed == 2, contracting=seed != 4)
    found = Synthesizer(ops, devices, shares, space).best()
    cost = found.bill(devices).seconds(devices, shares)
    assert cost == pytest.approx(cheapest(ops, devices, shares, space), rel=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_shares_are_as_good_as_any_on_a_fine_grid_and_never_raise_the_cost(seed):
    random = np.random.default_rng(seed)
    devices = Machine(
        (2, 3),
        tuple(tuple(random.uniform(20e12, 200e12, 2)) for _ in range(2)),
        dict.fromkeys(COLLECTIVES, 5e9),
        memory_bytes=(40e9, 16e9) if seed % 2 else (),
    )
    bill = DeviceLoad(
        list(random.uniform(1e14, 1e15, 2)),
        list(random.uniform(0, 1e13, 2)),
        {GATHER: float(random.uniform(0, 5e9))},
        {EXCHANGE: float(random.uniform(0, 5e9))},
        fixed_s=float(random.uniform(0, 2)),
        fixed_state=4e9,
        shared_stored=float(random.uniform(60e9, 90e9)),
    )
    shares = best_shares(bill, devices)
    assert sum(n * share for n, share in zip(devices.counts, shares, strict=True)) == pytest.approx(1.0)
    assert bill.fits(replace(devices, memory_bytes=tuple(1.0001 * m for m in devices.memory_bytes)), shares)
    grid = [(item, (1 - 2 * item) / 3) for item in np.linspace(0, 0.5, 4001)]
    allowed = [item for item in grid if bill.fits(devices, item)]
    best = min(bill.seconds(devices, item) for item in allowed)
    assert bill.seconds(devices, shares) <= best * (1 + 1e-6)
    for item in allowed[::400]:
        assert bill.seconds(devices, shares) <= bill.seconds(devices, item) * (1 + 1e-6)


def test_shares_that_memory_does_not_allow_are_none():
    devices = machine(memory_bytes=(10e9, 10e9))
    full = DeviceLoad([1e15] * 3, [0.0] * 3, fixed_state=11e9)
    assert best_shares(full, devices) is None
    crowded = DeviceLoad([1e15] * 3, [0.0] * 3, fixed_state=1e9, shared_stored=200e9)
    assert best_shares(crowded, devices) is None


def test_programs_and_shares_in_turn_end_no_worse_than_they_begin():
    ops = graph_of(model_of(3, 2048), Job(64, 512, "fp16"), 64)
    devices = machine(rate=20e9)
    first = Synthesizer(ops, devices, devices.even(), ProgramSpace()).best()
    start = first.bill(devices).seconds(devices, devices.even())
    assert balanced(first, devices).seconds <= start
    assert in_turn(ops, devices, ProgramSpace()).seconds <= start


def test_whole_sequences_end_as_early_as_any_that_hold_them():
    counts, pace, room = (2, 3), (1.0, 2.2), (9, 4)

    def ends(taken):
        return max(-(-n // k) * item for n, k, item in zip(taken, counts, pace, strict=True))

    for microbatch in (1, 5, 13, 20, 30):
        every = [
            (index, microbatch - index)
            for index in range(microbatch + 1)
            if index <= 2 * room[0] and microbatch - index <= 3 * room[1]
        ]
        total = 2 / pace[0] + 3 / pace[1]
        taken = whole_sequences([1 / item / total for item in pace], counts, microbatch, pace, room)
        assert sum(taken) == microbatch
        assert ends(taken) == pytest.approx(min(map(ends, every)))
    assert whole_sequences((0.2, 0.2), counts, 31, pace, room) is None


def test_plans_hold_uneven_shares_of_kinds_and_features_over_all_gpus():
    asked = question(small_model(), MIXED, batch=16)
    made = list(candidates(asked.model, asked.job, asked.profile))
    data = min((item for item in made if set(item.families) == {DATA}), key=lambda item: item.seconds)
    parts = pipeline_of(data, asked.profile).stages[0].parts
    per_gpu = [part.sequences_per_microbatch / len(part.ranks) for part in parts]
    assert len(parts) == 1 or per_gpu[0] > per_gpu[1]
    features = next(item for item in made if set(item.families) == {FEATURE})
    (part,) = pipeline_of(features, asked.profile).stages[0].parts
    assert part.layouts[0].layout.tp == len(part.ranks) == 8
    for item in made:
        plan = Plan(asked.model, asked.cluster, asked.job, (pipeline_of(item, asked.profile),))
        assert asked.lowered(plan).step_s() > 0
    chosen = Hap().plan(asked.model, asked.cluster, asked.job, asked)
    assert asked.lowered(chosen).fits()


def test_tensor_parallelism_that_heads_do_not_allow_is_not_proposed():
    asked = question(small_model(), ODD)  # five GPUs, sixteen heads
    families = {
        family
        for candidate in candidates(asked.model, asked.job, asked.profile)
        for family in candidate.families
    }
    assert FEATURE not in families
    assert DATA in families
