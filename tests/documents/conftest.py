"""Pages of one run share their searches."""

from collections.abc import Iterator

import pytest

from tests.remembered import searched_once


@pytest.fixture(autouse=True, scope="package")
def one_search_for_all_pages() -> Iterator[None]:
    """A page that asks the planner what another page asked shows the same answer."""
    with searched_once():
        yield
