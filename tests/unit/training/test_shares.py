"""Work shared out by speed: as good as every other way to share it, and published splits."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.training.shares import by_earliest_end


@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0.2, 5.0)), min_size=1, max_size=3),
    st.integers(0, 9),
    st.integers(0, 1),
)
def test_no_other_way_to_share_single_units_ends_earlier(
    workers: list[tuple[float, float]], total: int, least: int
) -> None:
    """Workers that take their time to begin, then so long for each unit."""
    total += least * len(workers)

    def end_s(worker: int, count: int) -> float:
        return workers[worker][0] + count * workers[worker][1] if count else 0.0

    def last_s(counts: tuple[int, ...]) -> float:
        return max(end_s(worker, count) for worker, count in enumerate(counts))

    shares = by_earliest_end(total, end_s, [1] * len(workers), least)
    assert sum(shares) == total and min(shares) >= least
    every = product(range(least, total + 1), repeat=len(workers))
    assert last_s(shares) == min(last_s(counts) for counts in every if sum(counts) == total)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 40))
def test_workers_take_whole_turns_but_for_the_last_of_all(sizes: list[int], total: int) -> None:
    shares = by_earliest_end(total, lambda worker, turns: turns * (worker + 1), sizes)
    assert sum(shares) == total
    assert sum(share % size > 0 for share, size in zip(shares, sizes, strict=True)) <= 1


def test_the_published_split() -> None:
    """Unequal pipelines of Oobleck (Jang et al., SOSP 2023): 4,096 microbatches over six."""
    seconds = [6.1264] * 4 + [4.7951, 3.7795]
    shares = by_earliest_end(4096, lambda worker, count: count * seconds[worker], [1] * 6)
    assert shares == (594, 594, 594, 594, 758, 962)


def test_ties_go_to_the_first() -> None:
    assert by_earliest_end(5, lambda worker, count: count, [1, 1, 1]) == (2, 2, 1)
