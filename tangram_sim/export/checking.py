"""Dry run of exported files: the framework's own parser reads them, if it is installed. No GPU is used."""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tangram_sim.errors import BadInputError
from tangram_sim.export.formats import Exported
from tangram_sim.export.uniform import CannotExportError
from tangram_sim.planners.uniform.frameworks import framework_named
from tangram_sim.training.plan import Plan

_SECONDS = 300.0  # frameworks import torch, which takes a while on a cold disk
_MISSING = 3  # exit code of a script whose framework is not there
_MEGATRON = """\
import os, shlex, sys, warnings
warnings.simplefilter("ignore")
try:
    import torch
    from megatron.training import arguments
except ImportError:
    sys.exit({missing})
class Gpu:  # what the parser asks of the oldest kind of the plan
    major, minor, multi_processor_count = {capability}, 0, 100
torch.cuda.get_device_capability = lambda *_: (Gpu.major, 0)
torch.cuda.get_device_properties = lambda *_: Gpu
os.environ.update(WORLD_SIZE="{world}", RANK="0", LOCAL_RANK="0")
given = "--lr 1e-4 --train-iters 10 --tokenizer-type NullTokenizer"
local = "--no-rope-fusion --transformer-impl local --no-persist-layer-norm --no-gradient-accumulation-fusion"
sys.argv = ["pretrain_gpt.py", *shlex.split(open("megatron.args").read()), *shlex.split(given + " " + local)]
args = arguments.parse_args()
args.padded_vocab_size = {vocab}
arguments.validate_args(args, {{}})
arguments.core_transformer_config_from_args(args)
"""
_TORCHTITAN = """\
import sys
try:
    from torchtitan.config import ConfigManager
except ImportError:
    sys.exit({missing})
sys.path.insert(0, ".")
ConfigManager().parse_args({words})
"""
_DEEPSPEED = """\
import sys
from unittest.mock import patch
try:
    from deepspeed.runtime import config
except ImportError:
    sys.exit({missing})
class Ranks:
    get_data_parallel_world_size = staticmethod(lambda: {dp})
with patch.object(config.dist, "get_rank", lambda: 0):
    config.DeepSpeedConfig("ds_config.json", Ranks)
"""
_WORDS = {
    "0.2.2": ["--job.config_file", "torchtitan.toml"],
    "0.3.0": ["--module", "tangram_recipe", "--config", "planned"],
}


def check(found: Exported, plan: Plan, to: str, version: str, python: str) -> str:
    """A sentence: the verdict on the files of the framework installed for the interpreter `python`.

    Raises CannotExportError with the framework's last output if it refuses them, BadInputError for an
    interpreter that does not start.
    """
    framework = framework_named(to, version)
    if to == "flagscale":  # its parser needs its patched backend; its rules were held when the file was read
        return f"{framework.label}: its own rules on meshes, restated here, hold"
    script = _script(plan, to, framework.version)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in found.files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text, encoding="utf-8")
        try:
            done = subprocess.run(
                [python, "-c", script],
                cwd=folder,
                env=_environment(found.files),
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BadInputError(f"`python={python}`: {error}") from None
    if done.returncode == _MISSING:
        return f"{framework.label} is not installed for {python}: `python=` names an interpreter that has it"
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
        raise CannotExportError(f"{framework.label} refuses the files: {said[-1]}")
    return f"{framework.label} reads the files"


def _script(plan: Plan, to: str, version: str) -> str:
    if to == "megatron":
        blackwell = all(gpu.peak_flop_per_s("nvfp4") for gpu in plan.gpu_kinds)
        return _MEGATRON.format(
            missing=_MISSING,
            capability=10 if blackwell else 8,
            world=plan.gpus_used,
            vocab=plan.model.vocab,
        )
    if to == "torchtitan":
        return _TORCHTITAN.format(missing=_MISSING, words=_WORDS[version])
    dp = plan.pipelines[0].stages[0].layout.dp * len(plan.pipelines)
    return _DEEPSPEED.format(missing=_MISSING, dp=dp)


def _environment(files: Mapping[str, str]) -> dict[str, str]:
    """This process's environment variables, with those that the launch script exports."""
    words = [shlex.split(line)[1] for line in files["launch.sh"].splitlines() if line.startswith("export ")]
    return {**os.environ, **dict(word.split("=", 1) for word in words if "=" in word)}
