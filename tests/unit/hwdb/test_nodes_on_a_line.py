"""Nodes on one line, the same grammar for clusters and additions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb, load_cluster
from tangram_sim.hwdb.inline_cluster import counted_nodes
from tangram_sim.purchasing.fleets import parse_purchases
from tangram_sim.questions.serve_what_if import purchases

HWDB = Hwdb.load()
NODES = ("H100x8", "DGX-A100-80GB", "L40Sx4")


@given(
    st.lists(
        st.tuples(st.sampled_from(NODES), st.integers(1, 999), st.none() | st.integers(1, 3200)), min_size=1
    )
)
def test_what_is_written_is_what_is_read(parts: list[tuple[str, int, int | None]]) -> None:
    line = "+".join(f"{name}:{count}" + (f"@{nics}" if nics else "") for name, count, nics in parts)
    wanted = [(name, count, {"nic_gbps": nics} if nics else {}) for name, count, nics in parts]
    assert counted_nodes(line) == counted_nodes(line.replace("+", " , ")) == wanted


def test_a_cluster_and_an_addition_of_the_same_words_are_the_same_nodes() -> None:
    line = "H100x8:4@400+L40Sx4:2"
    groups = load_cluster(line, HWDB).groups
    bought = parse_purchases(line, HWDB)
    assert [
        (purchase.node.gpu.name, purchase.count, purchase.node.nic_bytes_per_s) for purchase in bought
    ] == [(group.node.gpu.name, group.count, group.node.nic_bytes_per_s) for group in groups]
    assert groups[0].node.nic_bytes_per_s == 50e9


@pytest.mark.parametrize(
    "line", ["H100x8:0", "H100x8:2@", "H100x8:2@fast", "H100x8:2@-1", "H100x8:2@inf", ":2", "H100x8:2+"]
)
def test_other_words_are_refused_with_an_example(line: str) -> None:
    for read in (load_cluster, parse_purchases):
        with pytest.raises(BadInputError, match="H100x8:4@400"):
            read(line, HWDB)


def test_additions_to_a_service_are_gpus_or_nodes() -> None:
    found = purchases("H100x8:2+L40S:4@0.9+DGX-A100-80GB:1", HWDB)
    assert [(gpu_purchase.gpu, gpu_purchase.count) for gpu_purchase in found] == [
        ("H100-SXM5-80GB", 16), ("L40S", 4), ("A100-SXM4-80GB", 8)
    ]  # fmt: skip
