"""Clusters nobody chose: the generator of `python -m benchmarks anywhere`, and what planning them owes."""

import math
from collections import Counter

import pytest

from benchmarks.anywhere.table import Case, lines, quantile
from benchmarks.anywhere.usual import MOST_NODES, usual
from benchmarks.anywhere.worlds import FULL, SMALL, World, world
from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.models import Experts
from tangram_sim.studies import api

HWDB = Hwdb.load()
WORLDS = [world(seed, FULL, HWDB) for seed in range(200)]


def _boxes(one: World) -> set[int]:
    return {group.node.gpus for group in one.cluster.groups}


def test_usual_worlds_are_two_or_three_kinds_of_full_boxes() -> None:
    """A few nodes each, a model that their memory holds; the same world whenever it is asked for."""
    made = [usual(seed, HWDB) for seed in range(60)]
    assert made[7].words() == usual(7, HWDB).words()
    nodes = [sum(group.count for group in item.cluster.groups) for item in made]
    assert min(nodes) >= 2 and max(nodes) <= MOST_NODES
    assert {item.kinds for item in made} == {2, 3}
    assert len({item.model.name for item in made}) > 3
    for item in made:
        memory = sum(
            group.count * group.node.gpus * group.node.gpu.memory_bytes for group in item.cluster.groups
        )
        assert item.model.parameters * 16 < memory or item.model.name == "llama3-8b"


def test_worlds_hold_what_real_clusters_hold() -> None:
    """Every trait that the benchmark is for occurs among 200 seeds, none of them in nearly all."""
    traits = {
        **{f"{kinds} groups": lambda item, n=kinds: len(item.cluster.groups) == n for kinds in range(2, 7)},
        **{f"boxes of {size}": lambda item, n=size: n in _boxes(item) for size in (1, 2, 3, 4, 8, 16)},
        "a rack": lambda item: any(group.node.scale_up_nodes > 1 for group in item.cluster.groups),
        "a slow NIC": lambda item: any(group.node.nic_bytes_per_s < 1e9 for group in item.cluster.groups),
        "PCIe": lambda item: any(group.node.intra.kind == "pcie" for group in item.cluster.groups),
        "one kind behind two networks": lambda item: item.kinds < len(item.cluster.groups),
        "odd counts": lambda item: any(group.count % 2 for group in item.cluster.groups if group.count > 2),
        "few among many": _few,
        "a mixture": lambda item: any(isinstance(block.feed_forward, Experts) for block in item.model.blocks),
        "over 100 B": lambda item: item.model.parameters > 1e11,
        "under 3 B": lambda item: item.model.parameters < 3e9,
        "long sequences": lambda item: item.job.seq >= 32768,
        "short sequences": lambda item: item.job.seq <= 1024,
        "a small batch": lambda item: item.job.global_batch <= 16,
        "a large batch": lambda item: item.job.global_batch >= 1024,
        "a stated dtype": lambda item: item.job.dtype != "auto",
    }
    counts = {name: sum(bool(holds(item)) for item in WORLDS) for name, holds in traits.items()}
    assert not [name for name, count in counts.items() if not 0.02 * len(WORLDS) <= count <= 190], counts
    nodes = [sum(group.count for group in item.cluster.groups) for item in WORLDS]
    assert min(nodes) == 2
    assert 200 < max(nodes) <= 400


def _few(one: World) -> bool:
    counts = Counter[str]()
    for group in one.cluster.groups:
        counts[group.node.gpu.name] += group.count
    return min(counts.values()) <= 2 and max(counts.values()) >= 10


def test_a_seed_is_one_world(tmp_path) -> None:
    """The same seed gives the same world, another one another; its files say the same as its nouns."""
    assert world(7, FULL, HWDB) == WORLDS[7] != WORLDS[8]
    given = next(item for item in WORLDS if not isinstance(item.model_facts, str))
    words = given.write(tmp_path).split()
    assert load_model(words[2]).parameters == given.model.parameters
    assert load_cluster(words[3], HWDB) == given.cluster


@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 10))]
)
def test_every_small_world_has_a_plan_or_a_reason(seed: int) -> None:
    """A plan whose file replays to the same step, no faster than its bound; or words why there is none."""
    given = world(seed, SMALL, HWDB)
    try:
        found = api.plan(given.model, given.cluster, given.job, hwdb=HWDB).document
    except InfeasibleError as error:
        assert "GiB" in str(error) or "units" in str(error), str(error)
        return
    assert found.step_s >= found.lower_bound_step_s * (1 - 1e-9)
    assert math.isclose(api.simulate(found, hwdb=HWDB).document.step_s, found.step_s, rel_tol=1e-9)


def test_the_page_names_the_worst() -> None:
    """Distributions and the worst rows come from the cases as they are; what broke is named."""
    plan = {"step_s": 2.0, "bound_s": 1.0, "replayed_s": 2.0}
    cases = [Case(seed, f"world {seed}", 8, 2, 3, float(seed), 1e8, dict(plan)) for seed in range(1, 21)]
    cases[3].peers = {"uniform": {"step_s": 1.5}, "sailor": {"step_s": 4.0}}
    cases[2].exhaustive = {"step_s": 1.9}
    cases[4].answer = {"broke": "no answer within 9 CPU s"}
    cases[5].answer = plan | {"replayed_s": 2.1}
    page = lines(cases, "the command", "today")
    assert quantile([case.cpu_s for case in cases], 0.95) == 19.0
    assert "| all | 20 | 10.5 | 19.0 | 20.0 | 100 | 100 | 100.0 % | 100.0 % |" in page
    assert "| uniform | 1 | 0.75 | 0.750 | 1 | 0 |" in page
    assert "| 3 | +5.26 % | world 3 |" in page
    assert any("0 of 1 plans within 1 %, mean +5.26 %" in line for line in page)
    assert "- seed 5 broke: no answer within 9 CPU s; world 5" in page
    assert "- seed 6 replays to 2.1 s, planned 2 s; world 6" in page
    slowest = page[page.index("## Slowest to plan") + 4 :][:10]
    assert slowest[0].startswith("| 20 | 20 | plan |")
    assert len(slowest) == 10
