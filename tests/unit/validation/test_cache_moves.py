"""Moving a cache from prefill to decode takes its bytes over the link between them."""

import pytest
from tangram_validate.serving.cache_moves import kv_transfer_s

from tangram_sim.hwdb import Hwdb
from tests.unit.serving.test_costs import cost

HWDB = Hwdb.load()


def test_moving_a_cache_takes_its_bytes_over_the_link() -> None:
    where = cost("llama3-8b").deployment
    whole = kv_transfer_s(where, where, 1000, HWDB)
    assert whole == pytest.approx(1000 * 131072 / (50e9 * HWDB.network_efficiency.value), rel=0.02)
    assert kv_transfer_s(where, where, 1000, HWDB, cached=500) < 0.6 * whole
    assert kv_transfer_s(where, where, 1000, HWDB, sharing=2) == pytest.approx(2 * whole, rel=0.02)
    assert kv_transfer_s(where, where, 1000, HWDB, prefill_s=1.0) == pytest.approx(whole / 32)
