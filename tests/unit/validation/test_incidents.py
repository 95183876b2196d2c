"""Failure rates fitted to incidents: counts over node-days, their intervals, a file that is read back."""

from dataclasses import replace
from pathlib import Path

import pytest
from tangram_validate.calibration.incidents import FittedClass, failures_text

from tangram_sim.reliability.failures import load_failures
from tests.commands import Finished, tangram
from tests.places import SHARED

INCIDENTS = "class,takes,count,detect_s,repair_h,gpu\ngpu,node,6,60,24,\ngpu,node,1,120,,\nhang,none,,,,\n"


def fitted(folder: Path, text: str, *more: object) -> Finished:
    (folder / "incidents.csv").write_text(text)
    return tangram("calibrate", "failures", folder / "incidents.csv", *more)


def test_rates_are_counts_over_node_days_and_the_file_is_read_back(tmp_path: Path) -> None:
    found = fitted(tmp_path, INCIDENTS, "--nodes", 50, "--days", 20, "-o", tmp_path / "f.yaml", "--json")
    classes = {item["name"]: item for item in found.json["classes"]}
    assert classes["gpu"]["per_1000_node_days"] == pytest.approx(7.0)
    # Garwood's interval of a count of 7, one of 1: tables of the Poisson distribution.
    assert [classes["gpu"][end] for end in ("low", "high")] == pytest.approx([3.285, 13.148], abs=1e-3)
    assert [classes["hang"][end] for end in ("low", "high")] == pytest.approx([0.0513, 4.744], abs=1e-3)
    assert classes["gpu"]["detect_s"] == 90.0
    model = load_failures(str(tmp_path / "f.yaml"))
    assert model.per_1000_node_days({"H100": 50}) == pytest.approx(8.0)
    assert {class_.name: class_.takes for class_ in model.classes} == {"gpu": "node", "hang": "none"}


@pytest.mark.parametrize("name", ['it\'s "odd" \\ here: # {a}, b', "yes", "12", "😀 fan", "tab\there"])
def test_any_name_is_read_back_as_it_was(name: str, tmp_path: Path) -> None:
    fitted_class = FittedClass(name, "node", 3, 1.0, 0.5, 2.0, None, 2.5)
    path = tmp_path / "f.yaml"
    path.write_text(
        failures_text(
            (fitted_class, replace(fitted_class, takes="leaf"), replace(fitted_class, gpu="L4")), f"of {name}"
        )
    )
    model = load_failures(str(path))
    assert model.source == f"of {name}"
    assert [failure.name for failure in model.classes] == [
        f"{name}, node",
        f"{name}, leaf",
        f"{name}, L4, node",
    ]
    path.write_text(failures_text((fitted_class,), "alone"))
    assert load_failures(str(path)).classes[0].name == name


def test_no_incident_gives_a_bound_and_no_file(tmp_path: Path) -> None:
    """Three over what was exposed: the upper 95 % bound of a Poisson rate that gave no event."""
    found = fitted(tmp_path, "class\n", "--nodes", 50, "--days", 20, "-o", tmp_path / "f.yaml")
    assert found.code == 0
    assert "below 3 per 1,000" in found.out and "is not written" in found.out
    assert not (tmp_path / "f.yaml").exists()


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("name\ngpu\n", (), "a table of incidents has class"),
        ('class\n""\n', (), "without a class"),
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
    assert said in found.err


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
    assert sum(class_["count"] for class_ in classes) == 419
    assert sum(class_["per_1000_node_days"] for class_ in classes) == pytest.approx(3.79, abs=0.005)
