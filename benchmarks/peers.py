"""Planners side by side on the clusters of recorded peer runs: `python -m benchmarks.peers RUNS_FOLDER`.

By default every planner and every recorded plan is played by this simulator, clusters up to `--gpus` large.
`--own-cost` asks instead whether our Sailor and Metis reproduce (or beat) the recorded plans under their own
closed form and the profiles they were planned with.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peer_runs import MODELS, RecordedProfile, Run, outline_of, runs
from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.planners.coarse.coarse_plan import plan_of, step_s
from tangram_sim.planners.peers import metis, sailor
from tangram_sim.planners.peers.amp import Amp
from tangram_sim.planners.peers.flashflex.planner import FlashFlex
from tangram_sim.planners.peers.hap.planner import Hap
from tangram_sim.planners.tangram.planner import Tangram
from tangram_sim.planners.uniform.best_uniform import BestUniform
from tangram_sim.planners.whole_cluster import Price, WholeClusterPlanner
from tangram_sim.studies.comparison import answer, questions
from tangram_sim.training.job import Job

PLANNERS: dict[str, type[WholeClusterPlanner]] = {
    planner.name: planner
    for planner in (Tangram, BestUniform, metis.Metis, sailor.Sailor, Amp, FlashFlex, Hap)
}


def own_cost(folder: Path, most_gpus: int) -> None:
    """One line per recorded run of Sailor and Metis, and the share that is reproduced or beaten."""
    counts: dict[str, list[bool]] = {}
    for run in runs(folder):
        family = run.planner.partition("-")[0]
        if family not in ("sailor", "metis") or run.gpus > most_gpus:
            continue
        profile = RecordedProfile(folder, run.model, run.cluster)
        recorded = outline_of(run, profile, family == "metis")
        begun = time.process_time()
        found = next((metis if family == "metis" else sailor).outlines(profile, run.global_batch), None)
        ours = step_s(found, profile) if found else float("inf")
        theirs = step_s(recorded, profile)
        counts.setdefault(family, []).append(ours <= theirs * (1 + 1e-9))
        print(
            f"{run.planner:15} {run.model:12} {run.cluster_name:22} recorded {run.objective_s:8.3f} s, here "
            f"{theirs:8.3f} s; best found {ours:8.3f} s in {time.process_time() - begun:.1f} CPU-s",
            flush=True,
        )
    for family, reached in counts.items():
        print(f"{family}: {sum(reached)} of {len(reached)} recorded plans reproduced or beaten")


def simulated(folder: Path, most_gpus: int, names: Sequence[str]) -> None:
    """One line per cluster: the step of every planner's plan, and of the plans recorded there."""
    hwdb = Hwdb.load()
    cases: dict[tuple[str, str], list[Run]] = {}
    for run in runs(folder):
        if run.gpus <= most_gpus:
            cases.setdefault((run.model, run.cluster_name), []).append(run)
    ahead, ratios = list[bool](), list[float]()
    for (model, cluster), recorded in sorted(cases.items(), key=lambda case: case[1][0].gpus):
        job = Job(recorded[0].global_batch)
        shape, where = load_model(MODELS[model]), load_cluster(cluster, hwdb)
        steps: dict[str, float] = {}
        words = []
        for name in names:
            first, *others = questions(shape, where, job, hwdb)  # at fresh prices
            told = answer(PLANNERS[name](), first, others=others)
            if told.result is None:
                words.append(f"{name} {told.status}")
                continue
            steps[name] = told.result.document.step_s
            words.append(f"{name} {steps[name]:.3f} s ({told.planning_cpu_s:.1f} CPU-s)")
        for number, run in enumerate(recorded):
            seconds = _recorded_s(run, questions(shape, where, job, hwdb)[0])
            words.append(
                f"[{run.planner}] {f'{seconds:.3f} s' if seconds < float('inf') else 'does not fit'}"
            )
            steps[f"recorded {number}"] = seconds
        peers = {name: seconds for name, seconds in steps.items() if name not in ("tangram", "uniform")}
        if "tangram" in steps and peers:
            ahead.append(steps["tangram"] <= min(peers.values()) * (1 + 1e-9))
            published = [s / steps["tangram"] for n, s in peers.items() if s < float("inf")]
            if len(where.groups) == 3:
                ratios += published
        print(f"{model} on {cluster}: {'; '.join(words)}", flush=True)
    if ahead:
        print(f"tangram at least as fast as every peer's plan on {sum(ahead)} of {len(ahead)} clusters")
    if ratios:
        print(
            f"three-type clusters: peers' steps are {sum(ratios) / len(ratios):.2f} x tangram's in the mean"
        )


def _recorded_s(run: Run, price: Price) -> float:
    """Simulated seconds of a recorded plan; inf where it does not fit."""
    names = [name for name, _ in run.cluster]
    outline = outline_of(run, price.profile, run.planner.startswith("metis"), names)
    try:
        return price.step_s(plan_of(outline, price.model, price.cluster, price.job, price.profile))
    except TangramError:
        return float("inf")


def main() -> None:
    """Read the options and print one of the two tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, help="folder with peer_planning_runs.csv and the peers' profiles"
    )
    parser.add_argument("--gpus", type=int, default=32, help="largest cluster")
    parser.add_argument("--own-cost", action="store_true")
    parser.add_argument("--planners", default=",".join(PLANNERS))
    given = parser.parse_args()
    if given.own_cost:
        own_cost(given.folder, given.gpus)
    else:
        simulated(given.folder, given.gpus, given.planners.split(","))


if __name__ == "__main__":
    main()
