"""Where stages of chains stand: on groups one by one, or on several as on one where they hold more so."""

import pytest

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb, load_cluster
from tangram_sim.planners.uniform.layouts import Uniform, stage_ranks
from tangram_sim.studies.chain_grounds import arrangements

HWDB = Hwdb.load()


def test_groups_are_one_ground_where_they_hold_more_stages_so() -> None:
    """Three nodes and five hold one and two stages of two nodes, together four; of one node no more."""
    cluster = load_cluster("A100-80GBx8:3+A100-SXM4-40GBx8:5", HWDB)

    def held(width: int) -> list[dict[str, int]]:
        found = arrangements(cluster.groups, 1, width, ordered=False)
        return [
            dict(zip((ground.name for ground in each.grounds), each.slots, strict=True)) for each in found
        ]

    assert held(16) == [{"g0": 1, "g1": 2}, {"g0 of g0+g1": 1, "g0+g1 of g0+g1": 1, "g1 of g0+g1": 2}]
    assert held(8) == [{"g0": 3, "g1": 5}]
    assert held(64) == [{"g0+g1 of g0+g1": 1}]
    several = tuple(f"{on} of g0+g1" for on in ("g1", "g0+g1", "g1", "g0"))
    ranks = stage_ranks(cluster, Uniform(pp=4, dp=16, stage_groups=several), 16)
    assert ranks == [tuple(range(16 * place, 16 * place + 16)) for place in (2, 1, 3, 0)]
    assert stage_ranks(cluster, Uniform(pp=1, dp=64, stage_groups=("g0+g1",)), 64) == [tuple(range(64))]
    with pytest.raises(BadInputError, match="twice"):
        stage_ranks(cluster, Uniform(pp=2, dp=8, stage_groups=("g0+g1", "g1")), 8)
