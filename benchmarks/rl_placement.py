"""Placement of post-training on generated mixed fleets: against the best naive rule, all rules and the bound.

    python -m benchmarks.rl_placement [FLEETS]

Prints a line a fleet (step, best naive rule, best rule, gap, CPU seconds) and the means; deterministic.
"""

import random
import sys
import time
from math import exp, log
from statistics import mean, median

from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.post_training.lengths import lognormal
from tangram_sim.post_training.overheads import load_overheads
from tangram_sim.post_training.workload import PostTraining
from tangram_sim.rl_planners.baselines import NAIVE, baselines
from tangram_sim.rl_planners.problem import RlProblem
from tangram_sim.rl_planners.search import RlSearch

KINDS = ("H100-SXM5-80GB", "H800-SXM5-80GB", "H20-96GB", "A100-SXM4-80GB", "L40S", "B200-HGX")
MODELS = ("qwen2.5-1.5b", "qwen2.5-7b", "llama3-8b", "qwen2.5-14b")


def problem(number: int, hwdb: Hwdb) -> RlProblem:
    """The generated problem of a number: two or three kinds, one to six nodes of each."""
    draw = random.Random(number)
    kinds = draw.sample(KINDS, draw.choice((2, 2, 3)))
    fleet = "+".join(f"{kind}x8:{draw.randint(1, 6)}" for kind in kinds)
    mean_tokens = draw.choice((500, 1000, 2000, 4000))
    work = PostTraining(
        load_model(draw.choice(MODELS)),
        draw.choice((64, 128)),
        8,
        256,
        lognormal(mean_tokens, 4 * mean_tokens),
        updates=draw.choice((1, 4)),
    )
    return RlProblem(work, load_cluster(fleet, hwdb), hwdb, load_overheads(hwdb), draw.choice((0, 1)))


def main(fleets: int) -> None:
    """Plan the first `fleets` problems and print how they fare."""
    hwdb = Hwdb.load()
    over_naive, over_all, gaps = list[float](), list[float](), list[float]()
    for number in range(fleets):
        looked = RlSearch(problem(number, hwdb))
        begun = time.process_time()
        found = looked.run()
        spent = time.process_time() - begun
        steps = {}
        for rule in baselines():
            plan = rule.plan(looked.problem, looked.pools, looked.judge)
            steps[rule.name] = looked.judge.step_s(plan) if plan is not None else float("inf")
        naive, best = min(steps[name] for name in NAIVE), min(steps.values())
        step = found.best.step_s
        over_naive.append(naive / step)
        over_all.append(best / step)
        gaps.append(found.gap)
        fleet, age = looked.problem.fleet.name, looked.problem.staleness
        print(
            f"{fleet} staleness {age}: {step:.1f} s, naive x{naive / step:.2f}, best rule "
            f"x{best / step:.2f}, gap {found.gap:.0%}, {spent:.1f} CPU s"
        )
    finite = [item for item in over_naive if item < float("inf")]
    gain = exp(mean(map(log, finite)))
    print(f"over the best naive rule, geometric mean: x{gain:.3f} on {len(finite)} fleets")
    print(f"over the best rule: x{exp(mean(map(log, over_all))):.3f}, least x{min(over_all):.3f}")
    print(f"gap to the bound: median {median(gaps):.0%}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
