"""Golden plans: decisions that a refactoring must reproduce; refresh with `python -m tests.golden`."""

import json
from pathlib import Path
from typing import Any

from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.studies import api
from tangram_sim.training.job import Job

FOLDER = Path(__file__).parent
CASES = {
    "gpt3-6.7b-azure-c1": ("gpt3-6.7b", "azure-c1", Job()),
    "gpt3-13b-azure-c3": ("gpt3-13b", "azure-c3", Job()),
    "mixtral-8x7b-azure-c2": ("mixtral-8x7b", "azure-c2", Job(seq=4096)),
    "gshard-moe-2.4b-azure-c1": ("gshard-moe-2.4b", "azure-c1-t4x4-v100x4", Job(seq=1024)),
    "opt-350m-amp": ("opt-350m", "amp-v100x12-t4x4", Job(global_batch=64, seq=1024, schedule="gpipe")),
}


def found(case: str) -> dict[str, Any]:
    """What the planner decides today, and the step it predicts."""
    model, cluster, job = CASES[case]
    hwdb = Hwdb.load()
    document = api.plan(load_model(model), load_cluster(cluster, hwdb), job, hwdb=hwdb).document
    return {
        "step_s": document.step_s,
        "lower_bound_step_s": document.lower_bound_step_s,
        "pipelines": [pipeline.model_dump(mode="json") for pipeline in document.pipelines],
    }


def stored(case: str) -> Any:
    """What it decided when the file was written."""
    return json.loads((FOLDER / f"{case}.json").read_text(encoding="utf-8"))
