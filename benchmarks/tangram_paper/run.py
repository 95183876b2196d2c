"""One system on one setup, planned and played; called in a process of its own, for cold CPU seconds."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.tangram_paper.setups import SETUPS
from benchmarks.tangram_paper.systems import GALVATRON, SYSTEMS, question
from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.studies.forecast import Forecast, forecast

OVERLAY = Path(__file__).parent / "hwdb"  # what the authors' scripts say of their software


def ask(system: str, key: str, stack: str = "", recompute: str = "") -> dict[str, Any]:
    """What `system` plans for the setup `key`, and what the simulator makes of it, as JSON.

    `stack` puts all systems on one software stack, `recompute` replaces what the system's software does.
    """
    setup = next(item for item in SETUPS if item.key == key)
    asked, hwdb = SYSTEMS[system], Hwdb.load([OVERLAY])
    software = asked.software
    if system == "Tangram-grid" and "Tangram" in setup.systems:  # beside the mixtures' own software
        software = GALVATRON
    software = replace(software, stack=stack or software.stack)
    if recompute:
        software = replace(software, recompute=(recompute,))
    put = question(software, load_model(setup.model), load_cluster(setup.cluster, hwdb), setup.seq, hwdb)
    cpu = time.process_time()
    try:
        plan, questions = asked.plan(put)
    except InfeasibleError as error:
        return {"step_s": None, "planning_cpu_s": time.process_time() - cpu, "reason": str(error)}
    cpu = time.process_time() - cpu
    played = forecast(plan, hwdb)
    return {
        "step_s": played.step_s,
        "planning_cpu_s": cpu,
        "questions": questions,
        "stages": stages(played),
        "fullest": played.lowered.fullness(),
        "reason": "" if played.lowered.fits() else "does not fit memory",
    }


def stages(played: Forecast) -> list[str]:
    """A line per stage: its layers, GPUs, layouts, seconds of a pass."""
    lines = []
    (pipeline,) = played.plan.pipelines
    times = played.step.times
    for place, stage in enumerate(pipeline.stages):
        layers = sum(stop - start for start, stop in stage.chunks)
        gpus = " + ".join(f"{len(part.ranks)} x {part.island}" for part in stage.parts)
        layouts = " | ".join(f"{run.layout}" for part in stage.parts for run in part.layouts)
        passing_s = float((times.forward_s + times.backward_input_s + times.backward_weight_s)[place].sum())
        lines.append(f"{layers} layers on {gpus}: {layouts}, {passing_s * 1e3:.0f} ms a microbatch")
    return [f"{pipeline.microbatches} microbatches of {pipeline.microbatch}", *lines]
