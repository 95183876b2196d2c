"""Generated histories: equal seeds, rates that come out, what is said of a trace."""

from pathlib import Path

import pytest

from tangram_sim.reliability.failures import FailureClass, FailureModel
from tangram_sim.reliability.spot.generate import SpotRates, describe, generate, spot_rates, trace_text
from tangram_sim.reliability.spot.tracefile import read_trace
from tests.commands import tangram


def test_equal_seeds_give_equal_bytes_and_traces_read_back(tmp_path: Path) -> None:
    rates = {"A": SpotRates(0.3, 600.0, 0.5), "B": SpotRates(0.1, 300.0)}
    made = [generate({"A": 10, "B": 4}, rates, 36000.0, seed) for seed in (3, 3, 4)]
    texts = [trace_text(history) for history in made]
    assert texts[0] == texts[1] != texts[2]
    path = tmp_path / "trace.csv"
    path.write_text(texts[0])
    again = read_trace(path, until_s=36000.0)
    assert again.counts() == made[0].counts()
    assert describe(again) == describe(made[0])


def test_the_rate_of_losses_comes_out() -> None:
    history = generate({"": 50}, {"": SpotRates(0.4, 300.0)}, 40 * 3600.0, 1)
    found = describe(history)
    expected = 0.4 * history.node_seconds() / 3600
    assert found.lost == pytest.approx(expected, abs=4 * expected**0.5)
    assert found.losses_per_node_hour == pytest.approx(found.lost / history.node_seconds() * 3600)
    assert found.most_nodes == 50
    assert found.losses_in_bursts < 0.1
    burst = describe(generate({"": 50}, {"": SpotRates(0.4, 300.0, 2.0)}, 40 * 3600.0, 1))
    assert burst.losses_in_bursts > 0.5
    assert burst.largest_loss > 3


def test_nodes_that_never_return_run_out() -> None:
    found = describe(generate({"": 6}, {"": SpotRates(5.0, 0.0)}, 20 * 3600.0, 2))
    assert found.fewest_nodes == 0
    assert found.lost == found.added == 6


def test_the_commands(tmp_path: Path) -> None:
    path = tmp_path / "made.csv"
    line = [
        "trace",
        "generate",
        "--nodes",
        "V100=6",
        "--nodes",
        "T4=3",
        "--failures",
        "rsc-1",
        "--hours",
        2000,
    ]
    assert tangram(*line, "-o", path).code == 0
    assert tangram(*line).out == path.read_text()
    found = tangram("trace", "describe", path, "--json").json
    assert found["kinds"]["V100"] >= 6
    assert found["losses_per_node_hour"] == pytest.approx(6.5 / 1000 / 24, rel=1.0)
    for arguments, said in (
        (["generate", "--nodes", "0", "--losses-per-node-hour", 1], "--nodes 0"),
        (["generate", "--nodes", "4"], "one of --losses-per-node-hour and --failures"),
        (["generate", "--nodes", "4", "--losses-per-node-hour", -1], "--losses-per-node-hour -1"),
        (["generate", "--nodes", "4", "--failures", "moon"], "unknown failure preset 'moon'"),
        (["describe", tmp_path / "none.csv"], "cannot be read"),
    ):
        finished = tangram("trace", *arguments)
        assert finished.code == 2
        assert said in finished.err


def test_a_leaf_goes_as_a_whole_and_its_places_are_filled_again() -> None:
    rates = {"": SpotRates(0.0, 600.0, 0.0, leaf_losses_per_node_hour=0.02, leaf_nodes=4)}
    history = generate({"": 12}, rates, 200 * 3600.0, 5)
    place = {f"node{number + 1}": number for number in range(12)}
    free: list[int] = []
    for change in history.changes[1:]:
        if change.removed:
            leaves = {place[node] // 4 for node in change.removed}
            assert len(leaves) == 1
            assert {at for at in place.values() if at // 4 in leaves} == {place[n] for n in change.removed}
        free = sorted([*free, *(place.pop(node) for node in change.removed)])
        for node in change.added:
            place[node] = free.pop(0)
    assert history.losses > 20


def test_classes_of_a_failure_model_take_nodes_and_leaves() -> None:
    model = FailureModel(
        "m",
        (
            FailureClass("gpu", "node", per_node_s=1e-6, repair_s=100.0),
            FailureClass("switch", "leaf", per_node_s=3e-6, repair_s=500.0),
            FailureClass("hang", "none", per_node_s=1.0),
        ),
        "test",
    )
    found = spot_rates(model, "H100", None, 0.0, 8)
    assert found.losses_per_node_hour == pytest.approx(0.0036)
    assert found.leaf_losses_per_node_hour == pytest.approx(0.0108)
    assert found.return_s == pytest.approx(400.0)
    assert found.leaf_nodes == 8
