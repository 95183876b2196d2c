"""Paths of groups: the worst of several is the worst in every figure."""

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.clusters import PathRates
from tangram_sim.cost.paths import _worst

RATES = st.builds(
    PathRates,
    inside=st.integers(1, 8),
    **{
        name: st.floats(1e6, 1e12)
        for name in (
            "ring_bytes_per_s",
            "exchange_bytes_per_s",
            "crossing_bytes_per_s",
            "leaving_bytes_per_s",
        )
    },
    **{name: st.floats(1e-7, 1e-3) for name in ("hop_inside_s", "hop_outside_s")},
)


@given(st.lists(RATES, min_size=1, max_size=4))
def test_the_worst_of_groups_is_no_better_than_any_of_them_and_no_worse_than_all(
    found: list[PathRates],
) -> None:
    worst = _worst(found)
    for field in fields(PathRates):
        values = [getattr(rates, field.name) for rates in found]
        pick = max if field.name.endswith("_s") and field.name.startswith("hop") else min
        assert getattr(worst, field.name) == pick(values)
