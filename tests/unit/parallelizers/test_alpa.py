"""Alpa: both programs against worked numbers and brute force, the contract, and where its plans differ."""

import itertools
import sys
from dataclasses import replace

import numpy as np
import pytest

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import load_model
from tangram_sim.models import Attention, Block, Experts, FeedForward
from tangram_sim.parallelizers.alpa import ilp
from tangram_sim.parallelizers.alpa.ilp import Graph, Operator, Resharding, solve
from tangram_sim.parallelizers.alpa.mesh import Axis, reshard_s
from tangram_sim.parallelizers.alpa.parallelizer import Alpa
from tangram_sim.parallelizers.alpa.shardings import Builder, block_graph, degrees, shardings
from tangram_sim.parallelizers.alpa.stages import split
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.parallelizers.contract import check_parallelizer
from tangram_sim.parallelizers.galvatron import Galvatron
from tangram_sim.parallelizers.grid import Grid
from tangram_sim.placement.islands import find_islands
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.tangram.engine import tangram
from tangram_sim.training.job import Job
from tangram_sim.training.stage.setting import Setting
from tests.contracts.requests import HWDB, REQUESTS, island, request
from tests.unit.parallelizers.test_galvatron import LLAMA, best, one_island, step_s

# The worked example: 2 bytes an element; a slow axis 0 and a fast axis 1.
FAST = (Axis(4, 10e-6, 200e9),)
BOTH = (Axis(2, 20e-6, 12.5e9), Axis(2, 10e-6, 200e9))
BATCH = {"batch_axes": (0,)}


def block(hidden, feed_forward=None):
    heads = hidden // 128
    return Block(Attention(heads, heads, 128, 128), feed_forward or FeedForward(4 * hidden, gated=False))


def graph_of(mesh, hidden, tokens, feed_forward=None, **options):
    return block_graph(Builder(mesh, tokens, 2.0, **options), block(hidden, feed_forward), hidden)


def letters(sharding):
    return " ".join("".join(roles) for roles in sharding.roles.values())


def cost_ms(graph, text):
    """Milliseconds of a choice written as the letters of every operator."""
    wanted = [tuple(word) for word in text.split()]
    choice = [node.strategies.index(roles) for node, roles in zip(graph.nodes, wanted, strict=True)]
    return graph.cost(choice)[0] * 1e3


@pytest.mark.parametrize(
    ("mesh", "hidden", "tokens", "options", "optimum", "ms"),
    [
        (FAST, 4096, 1024, {}, "R N F K N K", 0.292),
        (FAST, 4096, 14336, {}, "T T T T T T", 3.060),
        (BOTH, 8192, 512, BATCH, "TR TN TF TK TN TK", 64.628),
        (BOTH, 1024, 65536, BATCH, "TT TT TT TT TT TT", 2.259),
        (BOTH, 4096, 8192, BATCH, "TR TN TF TK TN TK", 16.897),
        (BOTH, 8192, 512, {}, "RR NK FT KN NK KN", 1.900),
        (BOTH, 4096, 8192, {}, "RT NT FT KT NT KT", 11.864),
        (BOTH, 4096, 8192, {"microbatches": 8}, "TR TN TF TK TN TK", 2.734),
    ],
)
def test_operator_shardings_of_the_worked_example(mesh, hidden, tokens, options, optimum, ms):
    found = solve(graph_of(mesh, hidden, tokens, **options))
    assert letters(found) == optimum
    assert found.seconds * 1e3 == pytest.approx(ms, abs=6e-4)


def test_other_shardings_of_the_worked_example():
    """What the optima are compared with, the tie at T = 3h, and a limit on memory."""
    data, megatron = "T T T T T T", "R N F K N K"
    for tokens, of_data, of_megatron in ((1024, 3.060, 0.292), (14336, 3.060, 3.563)):
        graph = graph_of(FAST, 4096, tokens)
        assert (cost_ms(graph, data), cost_ms(graph, megatron)) == pytest.approx(
            (of_data, of_megatron), abs=6e-4
        )
    tie = graph_of(FAST, 4096, 12288)
    assert cost_ms(tie, data) == pytest.approx(cost_ms(tie, megatron), rel=1e-9)
    both = " ".join(2 * word for word in data.split())
    assert cost_ms(graph_of(BOTH, 8192, 512), both) == pytest.approx(137.022, abs=6e-4)
    assert cost_ms(graph_of(BOTH, 1024, 65536), "TR TN TF TK TN TK") == pytest.approx(2.469, abs=6e-4)
    free = graph_of(BOTH, 4096, 8192)
    assert cost_ms(free, both) == pytest.approx(34.346, abs=6e-4)
    assert cost_ms(free, "RR NN FF KK NN KK") == pytest.approx(22.937, abs=6e-4)
    limited = solve(free, 2**30)
    assert letters(limited) == "RT NT FT KT NK KN"
    assert limited.seconds * 1e3 == pytest.approx(12.911, abs=6e-4)
    assert limited.held_bytes <= 2**30
    assert solve(free, 1e6) is None


def size_of(graph: Graph) -> tuple[int, int]:
    """(variables, rows) of the program without a memory limit."""
    counts = [len(node.strategies) for node in graph.nodes]
    pairs = [(counts[edge.before], counts[edge.after]) for edge in graph.edges]
    return sum(counts) + sum(p * q for p, q in pairs), len(counts) + sum(1 + p + q for p, q in pairs)


def test_the_program_equals_brute_force_over_all_layouts_of_a_block():
    """104,976 choices of six operators on two axes; 341 variables and 109 rows."""
    graph = graph_of(BOTH, 4096, 8192)
    counts = [len(node.strategies) for node in graph.nodes]
    pairs = [(counts[edge.before], counts[edge.after]) for edge in graph.edges]
    assert sum(counts) + sum(p * q for p, q in pairs) == 341
    assert len(counts) + sum(1 + p + q for p, q in pairs) == 109
    assert int(np.prod(counts)) == 104_976
    total, held = np.zeros(counts), np.zeros(counts)
    for place, node in enumerate(graph.nodes):
        shape = [-1 if place == axis else 1 for axis in range(len(counts))]
        total = total + node.seconds.reshape(shape)
        held = held + node.held_bytes.reshape(shape)
    for edge in graph.edges:
        ends = sorted((edge.before, edge.after))
        matrix = edge.seconds if ends[0] == edge.before else edge.seconds.T
        total = total + matrix.reshape([counts[k] if k in ends else 1 for k in range(len(counts))])
    assert solve(graph).seconds == pytest.approx(total.min(), rel=1e-9)
    for limit in (2.0**30, 0.9 * 2**30, 2.5 * 2**30):
        able = np.where(held <= limit, total, np.inf)
        found = solve(graph, limit)
        if np.isinf(able.min()):
            assert found is None
        else:
            assert found.seconds == pytest.approx(able.min(), rel=1e-9)


def test_the_program_equals_brute_force_on_random_graphs():
    rng = np.random.default_rng(2)
    infeasible = 0
    for _ in range(25):
        counts = rng.integers(2, 5, size=4)
        nodes = tuple(
            Operator(str(k), tuple(("T",) for _ in range(n)), rng.random(n) * 1e-3, rng.random(n) * 1e9)
            for k, n in enumerate(counts)
        )
        pairs = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]
        edges = tuple(Resharding(u, v, rng.random((counts[u], counts[v])) * 1e-3) for u, v in pairs)
        graph, limit = Graph(nodes, edges), float(rng.uniform(0.3, 2.5) * 1e9)
        costs = [graph.cost(choice) for choice in itertools.product(*(range(n) for n in counts))]
        able = [seconds for seconds, held in costs if held <= limit]
        found = solve(graph, limit)
        infeasible += not able
        assert (found is None) == (not able)
        if found:
            assert found.seconds == pytest.approx(min(able), rel=1e-9)
    assert 0 < infeasible < 20


@pytest.mark.parametrize(("tokens", "expert_ms", "tensor_ms"), [(4096, 1.308, 1.047), (16384, 2.063, 4.067)])
def test_experts_of_the_worked_example(tokens, expert_ms, tensor_ms):
    """Four all-to-alls against four all-reduces. The sheet sums the attention's weights up in one all-reduce,
    one latency less than the two operators here.
    """
    graph = graph_of(FAST, 4096, tokens, Experts(8, 2, 14336, gated=False))
    assert cost_ms(graph, "T T T T E") == pytest.approx(expert_ms + 0.010, abs=6e-4)
    assert cost_ms(graph, "R N F K M") == pytest.approx(tensor_ms, abs=6e-4)
    assert solve(graph).seconds * 1e3 <= min(expert_ms + 0.011, tensor_ms + 0.001)


def test_resharding_slices_first_and_gathers_last():
    """One axis at a time; what is sliced first makes the rest smaller."""
    slow, fast = BOTH
    size = 1e9
    assert reshard_s(BOTH, "TT", "TT", size) == reshard_s(BOTH, "RR", "TF", size) == 0.0
    assert reshard_s(BOTH, "RT", "TR", size) == fast.all_gather_s(size / 2)
    assert reshard_s(BOTH, "TT", "RR", size) == fast.all_gather_s(size / 2) + slow.all_gather_s(size)
    assert reshard_s(BOTH, "TR", "FR", size) == slow.all_to_all_s(size)
    assert Axis(1, 1.0, 1.0).all_reduce_s(1e9) == 0.0


WEIGHTS = (3, 2, 2, 2, 2, 4)


def staged(limit=None, weights=WEIGHTS):
    """The worked example of the inter-operator pass: submeshes of 1, 2 and 4 devices."""
    layers = len(weights)
    seconds = np.full((layers + 1, layers + 1, 3), np.inf)
    flying = np.zeros(seconds.shape, dtype=np.int64)
    for i, j in itertools.combinations(range(layers + 1), 2):
        for option, (devices, factor) in enumerate(((1, 1.0), (2, 1.2), (4, 1.6))):
            seconds[i, j, option] = sum(weights[i:j]) / devices * factor
            share = (j - i) / devices
            flying[i, j, option] = 10**6 if limit is None else max((limit - 2 * share) / share + 1e-9, 0)
    return seconds, flying


@pytest.mark.parametrize(
    ("limit", "stages", "step"),
    [
        (None, ["1x1", "2x1", "2x1", "1x1"], 75.0),
        (10, ["1x1", "2x1", "2x1", "1x1"], 75.0),
        (9, ["3x2", "2x1", "1x1"], 75.2),
        (8, ["3x2", "2x1", "1x1"], 75.2),
        (7, ["3x2", "3x2"], 81.0),
        (6, ["3x2", "3x2"], 81.0),
        (5, ["6x4"], 96.0),
    ],
)
def test_stages_of_the_worked_example(limit, stages, step):
    found = split(*staged(limit), (1, 2, 4), 4, 16)
    assert [f"{j - i}x{(1, 2, 4)[o]}" for i, j, o in found.stages] == stages
    assert found.seconds == pytest.approx(step)


def test_bounds_tried_in_the_worked_example():
    assert split(*staged(4), (1, 2, 4), 4, 16) is None
    for gap, tried, step in ((1e-6, 13, 75.2), (0.5, 6, 75.2), (1, 4, 81.0), (2, 3, 96.0)):
        found = split(*staged(8), (1, 2, 4), 4, 16, gap_s=gap)
        assert (found.tried, found.seconds) == (tried, pytest.approx(step))


def every_split(seconds, flying, held, devices, total, first=0):
    """All stages of layers from `first`, as lists of seconds; a stage is checked from what stands behind."""
    layers = seconds.shape[0] - 1
    if first == layers:
        return [[]] if total == 0 else []
    found = []
    for stop, (option, size) in itertools.product(range(first + 1, layers + 1), enumerate(devices)):
        if size <= total:
            for rest in every_split(seconds, flying, held, devices, total - size, stop):
                if flying[first, stop, option] >= held(len(rest)):
                    found.append([float(seconds[first, stop, option]), *rest])
    return found


def test_stages_equal_brute_force():
    """Random seconds and limits, also with stages that already stand behind."""
    rng = np.random.default_rng(4)
    infeasible = 0
    for number in range(30):
        seconds, flying = staged(weights=tuple(rng.random(5) + 0.2))
        seconds, flying = seconds * rng.uniform(0.7, 1.3, seconds.shape), rng.integers(0, 9, seconds.shape)
        more, microbatches = number % 3, int(rng.integers(1, 20))
        held = (0, *(s + more for s in range(1, 6)))
        every = every_split(seconds, flying, lambda behind, more=more: behind + 1 + more, (1, 2, 4), 4)
        least = min((sum(item) + (microbatches - 1) * max(item) for item in every), default=None)
        found = split(seconds, flying, (1, 2, 4), 4, microbatches, held, gap_s=0.0)
        infeasible += least is None
        assert (found is None) == (least is None)
        if found:
            assert found.seconds == pytest.approx(least, rel=1e-12)
    assert infeasible < 15


def test_layouts_nearest_to_shardings():
    """Axes on which operators agree are named; where they do not, each side is a layout."""
    model, job = load_model("gpt3-1.3b"), Job(seq=1024, dtype="fp16")
    mesh = (Axis(2, 1e-5, 1e10), Axis(4, 1e-5, 1e11))

    def named(**roles):
        roles = {name: tuple(word) for name, word in roles.items()}
        return set(degrees(model, job, model.blocks[0], mesh, ilp.SolvedSharding((), roles, 0.0, 0.0)))

    assert named(hid="TR", qkv="TN", att="TF", out="TK", up="TN", dn="TK") == {(4, 2, 1, True)}
    assert named(hid="TT", qkv="TT", att="TT", out="TT", up="TT", dn="TT") == {(1, 8, 1, False)}
    assert named(hid="TR", qkv="TT", att="TT", out="TT", up="TN", dn="TK") == {
        (1, 8, 1, False),
        (4, 2, 1, True),
    }
    mixture = load_model("mixtral-8x7b")
    routed = {"qkv": ("T", "N"), "out": ("T", "K"), "experts": ("E", "E")}
    sharding = ilp.SolvedSharding((), routed, 0.0, 0.0)
    assert set(degrees(mixture, job, mixture.blocks[0], mesh, sharding)) == {
        (4, 2, 2, True),
        (1, 8, 8, False),
    }


@pytest.mark.parametrize("microbatch", [1, 2, 8])
@pytest.mark.parametrize("where", [island(), island("A100-SXM4-80GB", "NVLink3", 1, 8)], ids=["V100", "A100"])
def test_the_fastest_sharding_of_real_islands_has_a_layout(where, microbatch):
    """Nothing is lost to rounding as long as memory does not bind: every operator agrees on every axis."""
    asked = request("gpt3-6.7b", where, microbatch=microbatch, job=Job(128, 2048, "fp16"))
    model = asked.slice.model
    setting = Setting(model, where, asked.job, microbatch, (), HWDB)
    found = list(shardings(setting, model.blocks[0]))
    fastest = min(found, key=lambda item: item[1].seconds)
    ((tp, dp, _, _),) = degrees(model, asked.job, model.blocks[0], *fastest)
    assert tp * dp == where.gpus
    assert dp <= microbatch


@pytest.mark.parametrize("name", REQUESTS)
def test_the_contract_holds(name):
    check_parallelizer(Alpa(), [REQUESTS[name]])


def test_what_the_user_fixes_binds_the_program():
    """Degrees that the program alone would not choose are found when asked for."""
    asked = request("gpt3-1.3b", island("A100-SXM4-40GB", "NVLink3", 1, 8), (1, 9), 8)
    for name, degree in (("tp", 1), ("tp", 4), ("tp", 8), ("dp", 4)):
        answer = Alpa().parallelize(replace(asked, constraints=Constraints(fixed=((name, degree),))))
        assert answer.partials
        assert all(getattr(partial.layout, name) == degree for partial in answer.partials)


def test_nothing_is_recomputed_unless_the_user_says_so():
    for kinds in (("none", "selective", "full"), ("full",)):
        asked = replace(LLAMA, microbatch=8, microbatches=32, constraints=Constraints(recompute=kinds))
        for partial in Alpa().parallelize(asked).partials:
            used = {run.layout.recompute for run in partial.runs} or {partial.layout.recompute}
            assert used == {kinds[0]}


def test_a_plan_outside_the_grid_from_a_ninth_of_the_layouts():
    """Llama-2 7B on eight A100-40GB: layers with different ZeRO stages, faster than any one layout."""
    asked = replace(LLAMA, microbatch=8, microbatches=32)
    uniform, answer = Grid().parallelize(asked), Alpa().parallelize(asked)
    seconds, partial = best(Alpa(), asked)
    assert len({run.layout for run in partial.runs}) == 2
    assert seconds < best(Grid(), asked)[0] * (1 - 1e-3)
    assert 9 * answer.considered < uniform.considered


def test_inner_stages_are_cut_for_what_each_must_hold():
    """Four stages of Llama-2 7B, nothing recomputed, memory scarcer and scarcer: balanced ones stop fitting
    before Alpa's stages do, which give those in front fewer layers.
    """
    fixed = Constraints(fixed=(("pp", 4),), recompute=("none",))
    where = island("A100-SXM4-40GB", "NVLink3", 1, 8)
    asked = request("llama2-7b", where, (0, None), 4, 16, Job(64, 2048, "bf16"), constraints=fixed)
    alone = 0
    for factor in (1.0, 0.85, 0.8, 0.75):
        gpu = replace(where.gpu, memory_bytes=where.gpu.memory_bytes * factor)
        tight = replace(asked, island=replace(where, gpu=gpu))
        found, balanced = Alpa().parallelize(tight).partials, Galvatron().parallelize(tight).partials
        if balanced:
            assert best(Alpa(), tight)[0] <= best(Galvatron(), tight)[0] * 1.005
        elif found:
            alone += 1
            assert not Grid().parallelize(tight).partials
            assert all(partial.cuts[1] < 9 for partial in found)
    assert alone >= 1


def test_tangram_on_one_island_is_alpa(monkeypatch):
    """With whole islands it plays what Alpa finds for some microbatch; splitting islands is never worse."""
    monkeypatch.setattr("tangram_sim.planners.search_memory.parallelizer_named", lambda _: Alpa)
    model, cluster, job = load_model("gpt3-1.3b"), one_island(nodes=2, gpus=4), Job(16, 2048, "bf16")
    fixed = Constraints(fixed=(("pp", 1),))
    wishes = SearchOptions(parallelizer="alpa", sub_islands=False, constraints=fixed)
    whole = tangram(model, cluster, job, HWDB, wishes).ranked[0]
    split_up = tangram(model, cluster, job, HWDB, replace(wishes, sub_islands=True)).ranked[0]
    (where,) = find_islands(cluster, "bf16", hwdb=HWDB)
    asked = request("gpt3-1.3b", where, job=job, constraints=fixed)
    alone = [
        step_s(partial, 16 // size)
        for size in (1, 2, 4, 8, 16)
        for partial in Alpa().parallelize(replace(asked, microbatch=size, microbatches=16 // size)).partials
    ]
    assert 0.98 * min(alone) < whole.step_s <= min(alone) * (1 + 1e-3)
    assert split_up.step_s <= whole.step_s * (1 + 1e-9)


def test_without_scipy_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(BadInputError, match=r"pip install 'tangram-sim\[alpa\]'"):
        Alpa().parallelize(REQUESTS["few atoms"])
