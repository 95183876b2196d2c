"""The rooms of the package, finer ones of two of them, and the tests that are to notice a fault in each."""

from dataclasses import dataclass
from pathlib import Path

# What a room's own folder of tests leaves to others: contracts of plug-ins, laws of whole answers.
_BESIDE = {
    "sim": ("tests/unit/training/test_lowering.py",),
    "layers": ("tests/unit/training",),
    "parallelizers": ("tests/contracts/test_parallelizer_contract.py",),
    "planners": ("tests/contracts/test_planner_contract.py",),
    "training": ("tests/contracts/test_schedule_contract.py",),
    "rl_planners": (
        "tests/unit/post_training/test_search.py",
        "tests/unit/post_training/test_recorded_placements.py",
    ),
    "serving": ("tests/laws/test_serving_iterations.py",),
    "cost": ("tests/unit/topology",),
    "questions": ("tests/contracts/test_questions.py", "tests/unit/cli/test_cli_errors.py"),
    "cli": ("tests/contracts/test_cli_contract.py", "tests/contracts/test_wording.py"),
}
_NOUNS = "nouns"  # single files at the ground
_PARTS = {
    "composition": (
        "tangram_sim/planners/tangram/composition",
        (
            "tests/unit/planners/test_composition_laws.py",
            "tests/unit/planners/test_recorded_searches.py",
            "tests/unit/planners/test_labels.py",
            "tests/unit/planners/test_compose.py",
            "tests/unit/planners/test_exact.py",
            "tests/unit/planners/test_seats.py",
            "tests/unit/planners/test_sweeps.py",
        ),
    ),
    "schedules": (
        "tangram_sim/training/schedules",
        (
            "tests/unit/training/test_orders_by_hand.py",
            "tests/unit/training/test_schedules.py",
            "tests/unit/training/test_shares.py",
            "tests/unit/training/test_lowering.py",
            "tests/contracts/test_schedule_contract.py",
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Tested:
    """Files of the package, and the tests that are to notice a fault in them."""

    modules: tuple[Path, ...]
    tests: tuple[str, ...]


def rooms(place: Path) -> dict[str, Tested]:
    """Every room of a checkout by its name; those of which two are parts come last."""
    package = place / "tangram_sim"
    found = {
        folder.name: Tested(tuple(sorted(folder.rglob("*.py"))), _tests(place, folder.name))
        for folder in sorted(package.iterdir())
        if folder.is_dir() and any(folder.glob("*.py"))
    }
    found[_NOUNS] = Tested(tuple(sorted(package.glob("*.py"))), _tests(place, _NOUNS))
    for name, (folder, tests) in _PARTS.items():
        there = tuple(test for test in tests if (place / test).exists())
        found[name] = Tested(tuple(sorted((place / folder).rglob("*.py"))), there)
    return found


def _tests(place: Path, name: str) -> tuple[str, ...]:
    asked = (f"tests/unit/{name}", *_BESIDE.get(name, ()))
    return tuple(test for test in asked if (place / test).exists())
