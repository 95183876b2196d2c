"""The problem file of a verb that plans a service, and the options that belong to plans of models only."""

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from tangram_sim.cli.serving.goal_options import GoalOptions, PlannedRequests
from tangram_sim.errors import BadInputError

if TYPE_CHECKING:
    from tangram_sim.serving_planners.flow_problem import FlowProblem
    from tangram_sim.serving_planners.problem import RentalProblem

# What says the same in a problem file, by field of the options.
_IN_FILE = {
    "budget": "`budget_per_hour`",
    "objective": "`kind`",
    "utilisation": "`utilisation`",
    "scenario": "`scenarios`",
    "link": "`link_gb_per_s`",
    "rate": "`rate` of every type in `workload`",
    "requests": "`requests` of every type in `workload`",
}
_OPTIONS = {"link": "--link-gb-per-s"}  # whose names are not those of their fields


def given_problem(
    question: str, identity: str | None, requests: PlannedRequests, goal: GoalOptions
) -> "tuple[RentalProblem | FlowProblem, list[str]]":
    """The problem in the file `question`, and its keys that were not understood.

    Raises BadInputError for options that only plans of models use, and where `question` is no file.
    """
    from tangram_sim.serving_planners.problem_file import load_problem

    if not question.lower().endswith(".json") and not Path(question).exists():
        raise BadInputError(
            f"{question}: no such problem file; a plan of a model needs --fleet FILE.yaml and --workload"
        )
    for options in (requests, goal):
        for one in fields(options):
            if getattr(options, one.name) != one.default:
                name = _OPTIONS.get(one.name, f"--{one.name}")
                there = _IN_FILE.get(one.name)
                raise BadInputError(
                    f"{name} belongs to plans of a model, on the GPUs of --fleet; "
                    + (f"in {question} write {there}" if there else f"throughputs of {question} are given")
                )
    return load_problem(Path(question), identity)
