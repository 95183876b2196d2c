"""What one planner answers in one world: run in a process of its own, one JSON object on standard output."""

import json
import math
import resource
import sys
import time
from typing import Any

from benchmarks.anywhere.worlds import world
from tangram_sim.errors import InfeasibleError
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.studies import api
from tangram_sim.studies.comparison import plan_with


def answer(seed: int, planner: str, limit_s: float) -> dict[str, Any]:
    """Step, bound and CPU seconds of a plan, or the reason why there is none; `exhaustive` is Tangram's own.

    `cpu_s` counts the process from its start to the answer; the replay behind it is not in it.
    """
    asked = world(seed)
    try:
        if planner == "tangram":
            result = api.plan(asked.model, asked.cluster, asked.job)
        elif planner == "exhaustive":
            wishes = SearchOptions(effort=planner, beside=False)
            limit = Deadline(limit_s)
            result = api.plan(asked.model, asked.cluster, asked.job, wishes=wishes, deadline=limit)
        else:
            result = plan_with(planner, asked.model, asked.cluster, asked.job, deadline=Deadline(limit_s))
    except InfeasibleError as error:
        return {"cpu_s": time.process_time(), "reason": str(error)}
    document, cpu_s = result.document, time.process_time()
    found = {
        "cpu_s": cpu_s,
        "step_s": document.step_s,
        "step_s_low": document.step_s_low,
        "bound_s": document.lower_bound_step_s,
        "covers": document.lower_bound_covers,
        "gpus_used": document.gpus_used,
        "stages": len(document.stages),
        "notes": list(document.notes),
    }
    if planner == "tangram":
        found["replayed_s"] = api.simulate(document).document.step_s
    return found


if __name__ == "__main__":
    most_s = math.ceil(float(sys.argv[4]))
    resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s))  # also of compiled code that hears nothing
    sys.stdout.write(json.dumps(answer(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))) + "\n")
