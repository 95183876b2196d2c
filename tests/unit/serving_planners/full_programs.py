"""The relaxation of a rental problem with all its columns in one linear program, written plainly."""

from collections.abc import Mapping
from math import inf

from tangram_sim.serving_planners.problem import MAKESPAN, RentalProblem
from tangram_sim.serving_planners.program import LinearProgram


def fractional_bound(problem: RentalProblem, least: Mapping[int, int] | None = None) -> float:
    """The greatest pace (a batch) or the least cost with fractions of replicas, at least `least[c]`."""
    program, batch = LinearProgram(), problem.objective == MAKESPAN
    pace = program.variable(inf if batch else 1.0)
    if not batch:
        program.row([(pace, 1.0)], low=1.0)
    counts = [program.variable() for _ in problem.configurations]
    for c, count in (least or {}).items():
        program.row([(counts[c], 1.0)], low=count)
    for n, gpu in enumerate(problem.gpus):
        taken = [
            (counts[c], float(configuration.gpus[n]))
            for c, configuration in enumerate(problem.configurations)
        ]
        program.row(taken, high=gpu.available)
    usd = [(counts[c], configuration.usd_per_hour) for c, configuration in enumerate(problem.configurations)]
    program.row(usd, high=problem.budget_usd_per_hour)
    load: list[list[tuple[int, float]]] = [[] for _ in counts]
    for w, kind in enumerate(problem.types):
        if kind.amount > 0:
            shares = []
            for c, configuration in enumerate(problem.configurations):
                if configuration.rps[w] > 0:
                    share = program.variable()
                    shares.append((share, 1.0))
                    load[c].append((share, kind.amount / configuration.rps[w] / problem.utilisation))
            program.row([*shares, (pace, -1.0)], low=0.0, high=0.0)
    for c, terms in enumerate(load):
        program.row([*terms, (counts[c], -1.0)], high=0.0)
    return program.maximise([(pace, 1.0)]).bound if batch else program.minimise(usd).bound
