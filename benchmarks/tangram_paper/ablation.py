"""Fig. 12: pruning policies switched on one after the other, each case in a process of its own."""

import time
from typing import Any

from benchmarks.tangram_paper.setups import ABLATED
from benchmarks.tangram_paper.systems import SYSTEMS, question
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.parallelizers.aceso import Aceso
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.tangram.engine import tangram

# (ours, the paper's bar, policies, whether Aceso's budget grows with the slice)
CASES = (
    ("no policy", "naive", (), False),
    ("+ redundancy", "+redundancy", ("redundancy",), False),
    ("+ imbalance", "+imbalance", ("redundancy", "imbalance"), False),
    ("+ infeasibility", "+infeasibility", ("redundancy", "imbalance", "infeasibility"), False),
    ("+ budget by slice", "+early stopping", ("redundancy", "imbalance", "infeasibility"), True),
    ("+ incompatibility", "", ("redundancy", "imbalance", "infeasibility", "incompatibility"), True),
)


def ask(case: str, parallelizer: str) -> dict[str, Any]:
    """CPU seconds, questions and step of one case."""
    _, _, policies, scaled = next(item for item in CASES if item[0] == case)
    model, cluster, seq = ABLATED
    hwdb, made = Hwdb.load(), load_model(model)
    if not scaled:  # every question may spend what the whole model may
        whole = Aceso().budget(made.layers + 2)
        Aceso.budget = lambda *_: whole  # type: ignore[method-assign]  # of this process alone
    put = question(SYSTEMS["Tangram-Aceso"].software, made, load_cluster(cluster, hwdb), seq, hwdb)
    wishes = SearchOptions(put.constraints, parallelizer=parallelizer, policies=policies, replicate=False)
    cpu = time.process_time()
    found = tangram(put.model, put.cluster, put.job, hwdb, wishes)
    return {
        "cpu_s": time.process_time() - cpu,
        "asked": found.counts.asked,
        "step_s": found.ranked[0].step_s,
    }
