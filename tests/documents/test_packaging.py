"""What is shipped works where the repository is not: the wheel, the sdist, and the data inside them."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from tests.places import ROOT

DATA = "tangram_sim/_data"


def _python(*arguments: str, cwd: Path, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | variables,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _build(kind: str, source: Path, folder: Path) -> Path:
    """The wheel or sdist of a source tree, made by the build backend that pip would call."""
    _python("-m", "hatchling", "build", "--target", kind, "--directory", str(folder), cwd=source)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """The source tree as it is now: somebody may edit files while the tests run."""
    passing = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("source") / "tree", ignore=passing))


@pytest.fixture(scope="module")
def wheel(tree, tmp_path_factory) -> Path:
    return _build("wheel", tree, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("site")
    flags = ("--quiet", "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check")
    _python("-m", "pip", "install", *flags, "--target", str(target), str(wheel), cwd=target)
    return target


def _members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_holds_the_package_with_its_data_and_nothing_else(wheel, tree):
    members = _members(wheel)
    modules = (path for path in (tree / "tangram_sim").rglob("*") if path.suffix in (".py", ".pyi"))
    ours = {path.relative_to(tree).as_posix() for path in modules}
    beside = (
        path for path in (tree / "validate/tangram_validate").rglob("*") if path.suffix in (".py", ".yaml")
    )
    ours |= {path.relative_to(tree / "validate").as_posix() for path in beside} | {"tangram_sim/py.typed"}
    assets = (path for path in (tree / "tangram_sim").glob("*/assets/*") if path.is_file())  # of pages
    ours |= {path.relative_to(tree).as_posix() for path in assets}
    files = (path for folder in ("hwdb", "traces") for path in (tree / folder).rglob("*") if path.is_file())
    data = {f"{DATA}/{path.relative_to(tree).as_posix()}" for path in files}
    shipped = {name for name in members if ".dist-info/" not in name}
    assert shipped == ours | data


def test_the_wheel_registers_the_command_and_the_parallelizer(wheel):
    members = _members(wheel)
    (entries,) = (data.decode() for name, data in members.items() if name.endswith("/entry_points.txt"))
    assert "tangram = tangram_sim.cli.main:main" in entries
    assert "[tangram_sim.parallelizers]" in entries
    assert "grid = tangram_sim.parallelizers.grid:Grid" in entries
    assert "validate.testbed = tangram_validate.cli.testbed:testbed" in entries
    assert "validate.published = tangram_validate.cli.validate:published" in entries


def test_installing_asks_for_nothing_that_planning_does_not_need(wheel):
    """torch and the test tools come with extras only."""
    members = _members(wheel)
    (text,) = (data.decode() for name, data in members.items() if name.endswith("/METADATA"))
    needed = message_from_string(text).get_all("Requires-Dist", [])
    plain = {line.split(">")[0].split("=")[0].strip() for line in needed if "extra ==" not in line}
    assert plain == {"numpy", "numba", "simpy", "pydantic", "pyyaml", "typer", "rich", "scipy", "pandas"}


# -S leaves out the editable installation that a developer has: third-party packages only, then the wheel.
_ELSEWHERE = """
import sys
sys.path[:0] = [{site!r}]
sys.path.append({third_party!r})
import tangram_sim
assert tangram_sim.__file__.startswith({site!r}), tangram_sim.__file__
assert {root!r} not in sys.path
sys.argv = ["tangram", *{arguments!r}]
from tangram_sim.cli.main import main
main()
"""


def _tangram(installed: Path, cwd: Path, *arguments: str) -> str:
    given = {
        "site": str(installed),
        "third_party": sysconfig.get_path("purelib"),
        "root": str(ROOT),
        "arguments": arguments,
    }
    # Interpreted: compiling every kernel for the new place takes longer than a small plan without.
    return _python("-S", "-c", _ELSEWHERE.format(**given), cwd=cwd, NUMBA_DISABLE_JIT="1")


def test_the_command_is_installed(installed):
    (script,) = (path for path in (installed / "bin", installed / "Scripts") if path.is_dir())
    assert [path.stem for path in script.iterdir()] == ["tangram"]


@pytest.mark.parametrize(
    "verb", [("validate", "published"), ("calibrate", "run"), ("serve", "validate"), ("serve", "calibrate")]
)
def test_the_installed_wheel_has_the_laboratorys_verbs(installed, tmp_path, verb):
    """They are found by entry point, which a wheel with one of its two packages would not have."""
    assert " ".join(("Usage: tangram", *verb)) in _tangram(installed, tmp_path, *verb, "--help")


@pytest.mark.slow
def test_the_installed_wheel_plans_elsewhere(installed, tmp_path):
    small = ("plan", "gpt3-125m", "azure-c1-t4x4-v100x4", "--global-batch", "8", "--seq", "512")
    printed = _tangram(installed, tmp_path, *small, "--json", "-o", "p.json")
    planned = json.loads(printed)
    assert planned["feasible"] and planned["gpus_total"] == 8
    again = json.loads(_tangram(installed, tmp_path, "simulate", "p.json", "--json"))
    assert again["step_s"] == planned["step_s"]
    assert again["hwdb_hash"] == planned["hwdb_hash"]


def test_the_installed_data_is_the_repositorys(installed, tmp_path):
    """Same names from the wheel as from the source tree."""
    from tangram_sim.hwdb import model_names

    listed = json.loads(_tangram(installed, tmp_path, "models", "list", "--json"))
    assert sorted(entry["name"] for entry in listed) == model_names()


def test_a_wheel_made_from_the_sdist_is_the_same(wheel, tree, tmp_path):
    """Everything the build needs is in the sdist: hwdb in the first place."""
    sdist = _build("sdist", tree, tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    again = _build("wheel", source, tmp_path / "wheel")
    kept = {name: data for name, data in _members(wheel).items() if not name.endswith("/RECORD")}
    assert {name: data for name, data in _members(again).items() if not name.endswith("/RECORD")} == kept
    names = {path.name for path in source.iterdir()}
    assert {"tests", "examples", "benchmarks", "Makefile", "README.md", "CHANGELOG.md"} <= names


@pytest.mark.parametrize("target", ["test", "test-all", "lint", "bench", "site", "fuzz", "mutants"])
def test_targets_of_make_are_written_once(target: str) -> None:
    """A second recipe for a target would silently take the place of the first."""
    if shutil.which("make") is None:
        pytest.skip("no make on this machine")
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
