"""Garbage is collected rarely while a plan is searched, and as before when it is found."""

import gc

import pytest

from tangram_sim.studies.collecting import OBJECTS, collecting_rarely


@pytest.mark.parametrize("before", [(700, 10, 10), (0, 10, 10), (10**6, 5, 5)])
def test_what_was_set_is_put_back(before: tuple[int, int, int]) -> None:
    """Also where the search ends with an error; a collector that is off, or rarer, is left alone."""
    usual = gc.get_threshold()
    gc.set_threshold(*before)
    try:
        with pytest.raises(ValueError, match="no plan"), collecting_rarely():
            assert gc.get_threshold()[0] == (max(OBJECTS, before[0]) if before[0] else 0)
            raise ValueError("no plan")
        assert gc.get_threshold() == before
    finally:
        gc.set_threshold(*usual)


def test_searches_of_several_threads_put_back_what_was_set_before_the_first() -> None:
    """The first to begin is the first to end: nobody is left with rare collection."""
    usual = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    try:
        item, other = collecting_rarely(), collecting_rarely()
        item.__enter__()
        other.__enter__()
        item.__exit__(None, None, None)
        assert gc.get_threshold()[0] == OBJECTS
        other.__exit__(None, None, None)
        assert gc.get_threshold() == (700, 10, 10)
    finally:
        gc.set_threshold(*usual)
