"""Failure rates fitted to incidents: counts over node-days, their intervals, a file that is read back."""

from pathlib import Path

import pytest

from tangram_sim.reliability.failures import load_failures
from tests.commands import Finished, tangram
from tests.places import SHARED

INCIDENTS = "class,takes,count,detect_s,repair_h,gpu\ngpu,node,6,60,24,\ngpu,node,1,120,,\nhang,none,,,,\n"


def fitted(folder: Path, text: str, *more: object) -> Finished:
    (folder / "incidents.csv").write_text(text)
    return tangram("calibrate", "failures", folder / "incidents.csv", *more)


def test_rates_are_counts_over_node_days_and_the_file_is_read_back(tmp_path: Path) -> None:
    found = fitted(tmp_path, INCIDENTS, "--nodes", 50, "--days", 20, "-o", tmp_path / "f.yaml", "--json")
    classes = {one["name"]: one for one in found.json["classes"]}
    assert classes["gpu"]["per_1000_node_days"] == pytest.approx(7.0)
    # Garwood's interval of a count of 7, one of 1: tables of the Poisson distribution.
    assert [classes["gpu"][end] for end in ("low", "high")] == pytest.approx([3.285, 13.148], abs=1e-3)
    assert [classes["hang"][end] for end in ("low", "high")] == pytest.approx([0.0513, 4.744], abs=1e-3)
    assert classes["gpu"]["detect_s"] == 90.0
    model = load_failures(str(tmp_path / "f.yaml"))
    assert model.per_1000_node_days({"H100": 50}) == pytest.approx(8.0)
    assert {one.name: one.takes for one in model.classes} == {"gpu": "node", "hang": "none"}


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("name\ngpu\n", (), "a table of incidents has class"),
        ('class\n""\n', (), "a table of incidents has"),
        ("class,takes\ngpu,rack\n", (), "unknown takes 'rack'"),
        ("class,count\ngpu,1.5\n", (), "a whole number"),
        ("class,count\ngpu,-2\n", (), "zero or more"),
        ("class,gpu\ngpu,A100\n", (), "unknown GPU kind"),
        ("class\ngpu\n", ("--days", 0), "give a number above 0"),
    ],
)
def test_incidents_that_cannot_be_counted_are_named(
    text: str, more: tuple[object, ...], said: str, tmp_path: Path
) -> None:
    found = fitted(tmp_path, text, "--nodes", "H100=8", *(more or ("--days", 10)))
    assert found.code == 2
    assert said in found.err or "without a class" in found.err


def test_a_published_run_gives_its_published_rate(tmp_path: Path) -> None:
    """Llama 3: 419 interruptions in 54 days on 2,048 nodes are 3.79 per 1,000 node-days."""
    path = SHARED / "data" / "elastic" / "failures" / "causes.csv"
    if not path.is_file():
        pytest.skip("the counts of published runs (../shared/data/elastic) are not here")
    import csv

    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row["run"].lower().startswith("llama")]
    text = "class,count\n" + "".join(f'"{row["cause"]}",{row["count"]}\n' for row in rows)
    found = fitted(tmp_path, text, "--nodes", 2048, "--days", 54, "--json")
    classes = found.json["classes"]
    assert sum(one["count"] for one in classes) == 419
    assert sum(one["per_1000_node_days"] for one in classes) == pytest.approx(3.79, abs=0.005)
