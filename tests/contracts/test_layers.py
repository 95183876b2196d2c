"""The house stands: imports go downwards, modules say what they know and stay short, importing is light."""

import ast
import subprocess
import sys

import pytest
from importlinter.cli import lint_imports

from tests.places import ROOT

MODULES = sorted(path for part in ("tangram_sim", "validate") for path in (ROOT / part).rglob("*.py"))
HEAVY = {"torch", "pandas", "numba", "scipy"}


def test_torch_is_imported_in_the_laboratory_and_its_tests_alone():
    """The testbed runs plans for real; planning and simulating need no torch."""
    importing = set()
    parts = ("tangram_sim", "validate", "benchmarks", "examples")
    for path in (path for part in parts for path in (ROOT / part).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.partition(".")[0] == "torch" for name in names):
                importing.add(path.relative_to(ROOT).parts[0])
    assert importing == {"validate"}


def test_planning_does_not_import_pandas(tmp_path):
    """A table takes a third of a second to import; who asks for none does not wait for it."""
    plan = tmp_path / "plan.json"
    asked = (
        "import sys\n"
        f"sys.argv = ['tangram', 'plan', 'bert-large', 'azure-c1-t4x4-v100x4', '-o', {str(plan)!r}]\n"
        "from tangram_sim.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "print({name.partition('.')[0] for name in sys.modules} & {'pandas', 'torch'})"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "set()"
    assert plan.is_file()


def test_rooms_import_only_rooms_below(monkeypatch):
    """The layers contract of pyproject.toml; exhaustive, so a new room must be given its floor."""
    monkeypatch.chdir(ROOT)
    assert lint_imports(no_cache=True) == 0, "run `lint-imports` to see which import breaks the contract"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_what_it_knows_and_knows_one_thing(path):
    text = path.read_text(encoding="utf-8")
    said = ast.get_docstring(ast.parse(text))
    assert said and said.splitlines()[0].strip(), "the first line says what the module knows"
    assert text.count("\n") <= 400, "past 400 lines: is it one thing?"


def test_no_module_of_tests_is_about_too_much():
    """Each is held to the length of the modules it tests."""
    tests = (ROOT / "tests").rglob("*.py")
    long = [path.name for path in tests if path.read_text(encoding="utf-8").count("\n") > 400]
    assert not long, "past 400 lines: split by what is tested"


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        # What a script or a plug-in pays before it asks for anything.
        ("import tangram_sim", HEAVY | {"numpy", "pydantic", "yaml"}),
        # `tangram --help` imports this.
        ("import tangram_sim.cli.main", HEAVY | {"numpy", "pydantic", "yaml"}),
        # Scoring published runs runs nothing: no torch.
        ("from tangram_validate.published import predict, report", {"torch", "pandas"}),
    ],
)
def test_imports_are_light(statement, heavy):
    asked = f"import sys; {statement}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not heavy & set(done.stdout.split())
