"""CPU seconds of planning post-training on larger fleets, and of its rollout player: figures and limits.

    python -m benchmarks.rl_planning

Prints a line a fleet (CPU seconds, limit, step, gap) and requests a CPU second of the fast player.
"""

import time

from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.post_training.lengths import lognormal
from tangram_sim.post_training.overheads import load_overheads
from tangram_sim.post_training.plan import RolloutReplicas
from tangram_sim.post_training.rollout import fleet_of, play_rollout
from tangram_sim.post_training.workload import PostTraining
from tangram_sim.rl_planners.problem import RlProblem
from tangram_sim.rl_planners.search import search

FLEETS = {"H800x8:16+H20x8:16": 20.0, "H800x8:14+H20x8:14+L40Sx8:14": 60.0}
REQUESTS = 1_048_576


def planned(fleet: str, staleness: int, hwdb: Hwdb) -> tuple[float, float, float]:
    """(CPU seconds, step, gap) of a plan for qwen2.5-7b, 512 prompts x 16 responses of 2,000 tokens."""
    work = PostTraining(load_model("qwen2.5-7b"), 512, 16, 256, lognormal(2000, 8192), updates=4)
    problem = RlProblem(work, load_cluster(fleet, hwdb), hwdb, load_overheads(hwdb), staleness)
    begun = time.process_time()
    found = search(problem)
    return time.process_time() - begun, found.best.step_s, found.gap


def requests_a_second(hwdb: Hwdb) -> float:
    """Requests a CPU second of the fast player: a million responses of about 200 tokens on 64 replicas."""
    work = PostTraining(load_model("qwen2.5-7b"), REQUESTS // 16, 16, 256, lognormal(200, 800))
    fleet = fleet_of(work, [RolloutReplicas("H100-SXM5-80GB", 64, memory_fraction=0.85)], hwdb)
    lengths = work.lengths.draw(work.prompts, work.samples, 0)
    begun = time.process_time()
    play_rollout(fleet, work.prompt_tokens, lengths)
    return REQUESTS / (time.process_time() - begun)


def main() -> None:
    """Print every figure beside its limit."""
    hwdb = Hwdb.load()
    for fleet, limit in FLEETS.items():
        for staleness in (0, 1):
            spent, step, gap = planned(fleet, staleness, hwdb)
            print(
                f"{fleet} staleness {staleness}: {spent:.1f} CPU s (limit {limit:.0f}), step {step:.1f} s, "
                f"gap {gap:.0%}",
                flush=True,
            )
    print(f"fast player: {requests_a_second(hwdb):,.0f} requests a CPU second (1,000,000 wanted)")


if __name__ == "__main__":
    main()
