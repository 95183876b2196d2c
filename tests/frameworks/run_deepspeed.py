"""Run inside DeepSpeed's environment: its configuration and its partition of layers on every cell.

python run_deepspeed.py CELLS
"""

import json
import os
import sys
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

CELLS = Path(sys.argv[1])
warnings.simplefilter("ignore")
os.environ.setdefault("DS_ACCELERATOR", "cpu")

from deepspeed.runtime import config as configuration  # noqa: E402
from deepspeed.runtime.pipe.topology import ProcessTopology  # noqa: E402
from deepspeed.runtime.utils import partition_uniform  # noqa: E402


def checked(cell: str, row: dict[str, Any]) -> list[int]:
    """Blocks of every stage, as the framework cuts them; the configuration is parsed first."""
    found = json.loads((CELLS / cell / "ds_config.json").read_text())
    pipeline = json.loads((CELLS / cell / "pipeline.json").read_text())

    class Ranks:
        get_data_parallel_world_size = staticmethod(lambda: row["dp"])

    with patch.object(configuration.dist, "get_rank", lambda: 0):
        config = configuration.DeepSpeedConfig(found, Ranks)
    assert config.train_batch_size == found["train_batch_size"]
    assert config.optimizer_params["lr"] > 0
    if config.bfloat16_config.enabled and config.zero_config.stage == 1:
        assert config.grad_accum_dtype == "fp32", config.grad_accum_dtype
    autoep = config.expert_parallel_config
    asked = found.get("expert_parallel")
    assert bool(asked) == bool(autoep and autoep.enabled)
    if asked:
        from deepspeed.module_inject.auto_ep_config import validate_autoep_config

        validate_autoep_config(autoep, row["world"], row["pp"], 1, 1, zero_stage=config.zero_config.stage)
    topology = ProcessTopology(**pipeline["topology"])
    assert topology.world_size() == row["world"]
    bounds = partition_uniform(pipeline["layers"], row["pp"])
    return [stop - start for start, stop in pairwise(bounds)]


def main() -> None:
    expected = json.loads((CELLS / "expected.json").read_text())
    results: dict[str, Any] = {}
    for cell, row in expected.items():
        if row["framework"] != "deepspeed" or "refused" in row:
            continue
        try:
            results[cell] = {"accepted": True, "blocks": checked(cell, row)}
        except BaseException as error:  # an assertion is its way to refuse
            results[cell] = {"accepted": False, "error": f"{type(error).__name__}: {error}"[:500]}
    (CELLS / "deepspeed.json").write_text(json.dumps(results, indent=1))


main()
