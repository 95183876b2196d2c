"""Dominated configurations: no best plan needs them, since another does as much with no more GPUs or cost.

A configuration is dominated by m copies of another of its role if these take no more GPUs of every kind, cost
no more and finish at least as many requests of every type a second: the replacement never hurts, whatever the
budget, the caps and the mix of requests. Of equal configurations the first stays.
"""

from math import inf

import numpy as np

from tangram_sim.serving_planners.problem import RentalProblem

_ALIKE = 1e-9  # a share of a price that is no difference


def undominated(problem: RentalProblem) -> frozenset[int]:
    """Numbers of the configurations that are not dominated."""
    given = problem.configurations
    if any(configuration.most < inf for configuration in given):
        return frozenset(range(len(given)))  # there may not be enough of what dominates
    gpus = np.array([configuration.gpus for configuration in given], dtype=np.float64)
    rps = np.array([configuration.rps for configuration in given])
    usd = np.array([configuration.usd_per_hour for configuration in given])
    # What is lost where: a replacement must not be lost in a scenario in which the replaced one is not.
    lost = np.array(
        [[c in scenario.lost for scenario in problem.scenarios] for c in range(len(given))], dtype=bool
    ).reshape(len(given), len(problem.scenarios))
    # Prices of scenarios are by kind: fewer GPUs of every kind at no higher price stay no dearer only where
    # a configuration costs what its GPUs cost.
    prices = np.array([gpu.usd_per_hour for gpu in problem.gpus])
    plain = np.isclose(gpus @ prices, usd)
    repriced = any(scenario.price_factors for scenario in problem.scenarios)
    # Of nodes that are paid for as a whole, idle GPUs cost what busy ones do: what counts is the rest.
    nodes = np.array([gpu.usd_per_hour * problem.by_nodes(n) for n, gpu in enumerate(problem.gpus)])
    rest = usd - gpus @ nodes
    roles = np.array([configuration.role for configuration in given])
    dead = np.zeros(len(given), dtype=bool)
    for c, configuration in enumerate(given):
        if not any(configuration.rps):
            dead[c] = True
            continue
        ratios = np.divide(gpus[c], gpus, out=np.full_like(gpus, np.inf), where=gpus > 0)
        copies = np.minimum(np.floor(ratios.min(axis=1)), np.floor(usd[c] / usd * (1 + 1e-12)))
        if problem.loses_nodes and (gpus[c] > [gpu.per_node for gpu in problem.gpus]).any():
            copies = np.minimum(copies, 1.0)  # several may not fit the nodes of one
        able = (copies >= 1) & ~dead & (roles == configuration.role) & ~(lost & ~lost[c]).any(axis=1)
        able &= np.where(able, copies, 0.0) * rest <= rest[c] + _ALIKE * usd[c]
        if repriced:
            able &= plain | (np.arange(len(given)) == c)
        able[c] = False
        better = able & (rps * np.where(able, copies, 0.0)[:, None] >= rps[c]).all(axis=1)
        dead[c] = bool(better.any())
    return frozenset(np.flatnonzero(~dead).tolist())
