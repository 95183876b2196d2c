"""Run inside an environment of TorchTitan: its configuration, stages and model on every cell.

python run_torchtitan.py VERSION CELLS RECORD
"""

import importlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

VERSION, CELLS, RECORD = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
warnings.simplefilter("ignore")

import torch  # noqa: E402


def config_of(cell: str) -> Any:
    """The configuration that the framework makes of a cell's files."""
    folder = CELLS / cell
    if VERSION == "0.2.2":
        from torchtitan.config import ConfigManager

        return ConfigManager().parse_args(["--job.config_file", str(folder / "torchtitan.toml")])
    from torchtitan.config.manager import ConfigManager

    for name in [name for name in sys.modules if name.startswith("tangram_recipe")]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        return ConfigManager().parse_args(["--module", "tangram_recipe", "--config", "planned"])
    finally:
        sys.path.remove(str(folder))


def dims_of(config: Any, world: int) -> None:
    from torchtitan.distributed import ParallelDims

    p = config.parallelism
    degrees = {
        "dp_replicate": p.data_parallel_replicate_degree,
        "dp_shard": p.data_parallel_shard_degree,
        "cp": p.context_parallel_degree,
        "tp": p.tensor_parallel_degree,
        "pp": p.pipeline_parallel_degree,
        "ep": p.expert_parallel_degree,
    }
    if VERSION == "0.2.2":
        degrees["etp"] = p.expert_tensor_parallel_degree
    dims = ParallelDims(**degrees, world_size=world)
    divisor = dims.seq_len_divisor
    assert config.training.seq_len % divisor == 0, f"sequence not divisible by {divisor}"
    inner = degrees["dp_shard"] * degrees["cp"] * degrees["tp"]
    spread = degrees["ep"] * degrees.get("etp", 1)
    assert degrees["ep"] == 1 or inner % spread == 0, f"ep {degrees['ep']} does not divide {inner}"
    sharded = degrees["dp_shard"] > 1 or degrees["cp"] > 1
    others = degrees["tp"] > 1 or degrees["pp"] > 1
    assert VERSION != "0.2.2" or sharded or not others, (
        "0.2.2 without FSDP beside other degrees: no mixed precision"
    )


def model_of(config: Any) -> torch.nn.Module:
    with torch.device("meta"):
        if VERSION == "0.2.2":
            from torchtitan.protocols.train_spec import get_train_spec

            spec = get_train_spec(config.model.name)
            arguments = spec.model_args[config.model.flavor]
            arguments.update_from_config(config)
            return spec.model_cls(arguments)
        return config.model_spec.model.build()


def counts(model: torch.nn.Module, parts: list[list[str]] | None, pp: int) -> list[int]:
    """Weights of every stage: modules are kept by name, as the framework's own split keeps them."""
    whole = {
        name: sum(weight.numel() for weight in item.parameters()) for name, item in parts_of(model).items()
    }
    if parts is None:
        return [sum(whole.values())]
    known = [name for part in parts for name in part]
    assert len(known) == len(set(known)), "a module is on two stages"
    assert known.count("tok_embeddings") == 1 and sum(name in ("output", "lm_head") for name in known) == 1
    missing = set(known) - set(whole)
    assert not missing, f"no module is called {sorted(missing)}"
    found = [0] * pp
    for place, part in enumerate(parts):
        found[place % pp] += sum(whole[name] for name in part)
    return found


def parts_of(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    found = {}
    for name, child in model.named_children():
        if name == "layers":
            found |= {f"layers.{index}": block for index, block in child.named_children()}
        else:
            found[name] = child
    return found


def record() -> None:
    """Names and types of the keys of the sections that are written, for tests that run without TorchTitan."""
    from dataclasses import fields

    from torchtitan import config

    names = {"training": "Training", "parallelism": "Parallelism"}
    if VERSION == "0.2.2":
        from torchtitan.config import job_config as config

        names |= {"model": "Model", "optimizer": "Optimizer", "activation_checkpoint": "ActivationCheckpoint"}
    suffix = "" if VERSION == "0.2.2" else "Config"
    sections = {
        section: {field.name: str(field.type) for field in fields(getattr(config, name + suffix))}
        for section, name in names.items()
    }
    RECORD.write_text(json.dumps(sections, indent=0) + "\n")


def main() -> None:
    record()
    expected = json.loads((CELLS / "expected.json").read_text())
    results: dict[str, Any] = {}
    built: dict[tuple[str, str], torch.nn.Module] = {}
    for cell, row in expected.items():
        if row["framework"] != "torchtitan" or row["version"] != VERSION or "refused" in row:
            continue
        try:
            os.environ["WORLD_SIZE"] = str(row["world"])
            config = config_of(cell)
            dims_of(config, row["world"])
            model = built.get(row["model"]) or built.setdefault(row["model"], model_of(config))
            p = config.parallelism
            stages = counts(model, p.module_fqns_per_model_part, p.pipeline_parallel_degree)
            results[cell] = {"accepted": True, "stages": stages}
        except BaseException as error:  # a parser exits, an assertion is its way to refuse
            results[cell] = {"accepted": False, "error": f"{type(error).__name__}: {error}"[:500]}
    (CELLS / f"torchtitan-{VERSION}.json").write_text(json.dumps(results, indent=1))


main()
