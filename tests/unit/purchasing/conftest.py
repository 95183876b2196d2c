"""A folder of a small shop, and answers kept between the tests of one module."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tangram_sim.hwdb import load_model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.purchasing.fleets import parse_purchases
from tangram_sim.purchasing.pricefile import load_prices
from tangram_sim.purchasing.whatif import what_if
from tests.commands import files
from tests.remembered import searched_once
from tests.unit.purchasing.shop import HWDB, JOB, NODES, PRICES, fleet_of


@pytest.fixture(autouse=True, scope="package")
def one_search_for_all_fleets() -> Iterator[None]:
    """The same few fleets grow by the same few nodes in most tests of this room."""
    with searched_once():
        yield


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with a model, a fleet, node files, a catalogue and prices."""
    files(tmp_path)
    (tmp_path / "prices.yaml").write_text(PRICES)
    for name, text in NODES.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    offers = [{"node": f"{name}.yaml", "most": 2 if name == "T4x4" else 1} for name in NODES]
    (tmp_path / "catalogue.yaml").write_text(yaml.safe_dump({"offers": offers}))
    return tmp_path


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("answers")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    files(folder)
    (folder / "prices.yaml").write_text(PRICES)
    for name, text in NODES.items():
        (folder / f"{name}.yaml").write_text(text)
    adds = [parse_purchases(f"{folder}/{item}", HWDB) for item in ("A100x4.yaml:2", "V100x4.yaml:1")]
    prices = load_prices(folder / "prices.yaml", HWDB)
    return what_if(
        load_model(str(folder / "tiny.yaml")), fleet_of(folder), adds,
        retired={"g0": 1}, job=JOB, tokens=1e10, prices=prices, hwdb=HWDB,
        wishes=SearchOptions(sub_islands=False),
    )  # fmt: skip
