"""Layers placed on unlike nodes: closed forms of small cases, and Helix's measured runs."""

from pathlib import Path

import numpy as np
import pytest
from tangram_validate.serving.placed_layers import (
    HopLink,
    LayerNode,
    NodeLayerTimes,
    PlacedRequest,
    play_placed,
)
from tangram_validate.serving.placed_runs import PlacedTables

from tangram_sim.errors import BadInputError
from tests.commands import tangram
from tests.places import SHARED

DATA = SHARED / "data" / "serving"
shared = pytest.mark.skipif(not DATA.is_dir(), reason="Helix's measured runs lie in ../shared")
LINK = HopLink(latency_s=0.001, bytes_per_s=1e6, token_bytes=100.0)
HOP_S = 0.001 + 1e-4


def times(decode_s: float = 0.002, per_token_s: float = 0.0, least_s: float = 0.0) -> NodeLayerTimes:
    tokens = np.array([0.0, 1000.0])
    return NodeLayerTimes(tokens, 1e-5 * tokens, tokens, decode_s + per_token_s * tokens, least_s)


def test_one_request_goes_round_the_nodes() -> None:
    """A token: each node's layers one after another, a hop before each node and one back to the host."""
    nodes = [LayerNode("a", 0, 4, times()), LayerNode("b", 4, 10, times(0.005))]
    got = play_placed(nodes, 10, LINK, [PlacedRequest(0.0, 100, 50)], clients=1, warm_s=0.0, end_s=60.0)
    assert got.token_s == pytest.approx(4 * 0.002 + 6 * 0.005 + 3 * HOP_S, rel=1e-6)
    prompt_s = 10 * 1e-3 + 2 * (0.001 + 100 * 1e-4) + HOP_S
    assert got.prompt_s == pytest.approx(prompt_s, rel=1e-6)


def test_the_host_bounds_a_layer_from_below() -> None:
    item = [PlacedRequest(0.0, 1, 200)]
    slow = play_placed(
        [LayerNode("a", 0, 8, times(least_s=0.01))], 8, LINK, item, clients=1, warm_s=0, end_s=30
    )
    assert slow.token_s == pytest.approx(8 * 0.01 + 2 * HOP_S, rel=1e-6)


def test_what_waits_is_batched_and_equal_nodes_take_turns() -> None:
    """One node whose batch costs nothing more gives every client its token; two nodes share the clients."""
    work = [PlacedRequest(0.0, 1, 100)]
    placed_outcome = play_placed(
        [LayerNode("a", 0, 8, times())], 8, LINK, work, clients=10, warm_s=5, end_s=50
    )
    assert placed_outcome.tokens_per_s * placed_outcome.token_s == pytest.approx(10, rel=0.05)  # Little's law
    assert placed_outcome.token_s < 2.1 * (8 * 0.002 + 2 * HOP_S)
    each = [LayerNode(name, 0, 8, times(0.0, 1e-3)) for name in "ab"]
    alone = play_placed(each[:1], 8, LINK, work, clients=40, warm_s=5, end_s=50)
    both = play_placed(each, 8, LINK, work, clients=40, warm_s=5, end_s=50)
    assert both.tokens_per_s == pytest.approx(2 * alone.tokens_per_s, rel=0.05)


def test_layers_that_nobody_holds_are_named() -> None:
    nodes = [LayerNode("a", 0, 4, times()), LayerNode("b", 5, 10, times())]
    with pytest.raises(BadInputError, match="begin at layer 4 of 10"):
        play_placed(nodes, 10, LINK, [PlacedRequest(0.0, 1, 2)], clients=1, warm_s=0.0, end_s=1.0)


def test_a_table_of_runs_alone_is_not_enough(tmp_path: Path) -> None:
    table = tmp_path / "helix_runs.csv"
    table.write_text("kind,method,part,load,decode_tok_s,decode_mean_s\nmeasured,helix,t4,online,1,1\n")
    found = tangram("serve", "validate", table)
    assert found.code == 2
    assert (
        "helix_placements.csv, helix_requests.csv, helix_layer_profiles.csv in the same folder" in found.err
    )


@shared
def test_measured_runs_of_unlike_gpus_are_met() -> None:
    """Two of them, as `serve validate helix_runs.csv` scores all: tokens a second within 8 %."""
    tables = PlacedTables(DATA / "helix_runs.csv")
    for gpu, load, tokens_per_s, token_s in (("l4", "offline", 64.8, 0.533), ("t4", "online", 29.3, 0.472)):
        row = {"model": "llama30b", "method": "helix", "load": load, "part": gpu, "warmup_s": "60.0"}
        played = tables.run(row).played()
        assert played.tokens_per_s == pytest.approx(tokens_per_s, rel=0.08)
        assert played.token_s == pytest.approx(token_s, rel=0.08)
