"""`make test-frameworks`: every cell is written, read by the framework itself and compared.

python -m tests.frameworks BUILD [--megatron SOURCE]: environments with pinned wheels are made in BUILD once.
SOURCE is a folder with Megatron-LM's `megatron`, or a git directory that holds the tag core_v0.16.1.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
from collections import defaultdict
from io import BytesIO
from pathlib import Path
from typing import Any

from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.planners.uniform.framework_models import flavor_of
from tests.frameworks.cells import MODELS, digest, write

HERE = Path(__file__).parent
RECORDED = HERE.parent / "unit" / "export" / "recorded"
TAG = "core_v0.16.1"
TORCH = "torch==2.13.*"
_COMMON = (TORCH, "triton", "psutil", "tyro", "torchdata", "datasets<4.8", "tokenizers", "tensorboard")
_MEGATRON = ("six", "regex", "einops", "tensorboard", "transformers", "sentencepiece", "tiktoken", "pyyaml")
_MEGATRON = (*_MEGATRON, "psutil", "triton")
_TITAN = (*_COMMON, "fsspec", "tomli", "einops", "pillow", "safetensors")
# Of each environment: what is resolved, and what is taken without its dependencies.
WHEELS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "megatron": (
        (TORCH, "megatron-core==0.16.1", *_MEGATRON),
        (),
    ),
    "torchtitan-0.2.2": (_TITAN, ("torchtitan==0.2.2",)),
    "torchtitan-0.3.0": (
        (*_TITAN, "spmd_types==0.2.3", "torch_checkpointing", "torchvision"),
        ("torchtitan==0.3.0",),
    ),
    "deepspeed": ((TORCH, "deepspeed==0.19.8"), ()),
}


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def environment(build: Path, name: str) -> Path:
    """The Python of an environment; made where it is not there yet."""
    folder = build / name
    python = folder / "bin" / "python"
    done = folder / "made"
    if not done.exists():
        say(f"making {folder} (once)")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        resolved, bare = WHEELS[name]
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *resolved], check=True)
        if bare:
            subprocess.run([*pip, "--no-deps", *bare], check=True)
        done.touch()
    return python


def megatron_source(build: Path, given: Path) -> Path:
    """A folder with `megatron` in it: the given one, or the tag of a git directory, unpacked."""
    if (given / "megatron").is_dir():
        return given
    folder = build / "megatron-source"
    if not (folder / "megatron").is_dir():
        packed = subprocess.run(
            ["git", "-C", given, "archive", TAG, "megatron"], check=True, capture_output=True
        ).stdout
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
    return folder


def outcome(row: dict[str, Any], found: dict[str, Any] | None) -> str:
    """What became of a cell: built, accepted, refused, or wrong, with the reason."""
    if "refused" in row:
        return "refused"
    if found is None:
        return "not run"
    if not found["accepted"]:
        return f"wrong: {found['error'].splitlines()[0][:160]}"
    wanted = [count - buffers for count, buffers in zip(row["stages"], row["buffers"], strict=True)]
    if row["framework"] == "torchtitan":
        flavor = flavor_of(load_model(row["model"]), row["version"])
        more = flavor.more if flavor else 0
        wanted[0] += more + sum(row["buffers"]) if more > 0 and row["pp"] == 1 else 0  # a vision encoder
    if "stages" in found:
        return "built" if found["stages"] == wanted else f"wrong: {found['stages']} weights, not {wanted}"
    if "blocks" in found:
        even = len(set(found["blocks"])) == 1 and sum(found["blocks"]) == row["layers"]
        return "accepted" if even else f"wrong: blocks {found['blocks']}"
    return "accepted"


def table(expected: dict[str, dict[str, Any]], results: dict[str, Any]) -> tuple[list[str], int]:
    """(lines of the table: model by framework, how many cells are wrong or were not run)."""
    cells: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    bad = []
    frameworks = list(dict.fromkeys(f"{row['framework']} {row['version']}" for row in expected.values()))
    for name, row in expected.items():
        found = {"accepted": True} if row["framework"] == "flagscale" else results.get(name)
        what = outcome(row, found)
        cells[row["model"], f"{row['framework']} {row['version']}"][what.split(":")[0]] += 1
        if what.startswith(("wrong", "not run")):
            bad.append(f"{name}: {what}")
    lines = ["| model | " + " | ".join(frameworks) + " |", "|---" * (len(frameworks) + 1) + "|"]
    for model in MODELS:
        shown = [
            ", ".join(f"{count} {what}" for what, count in sorted(cells[model, framework].items())) or "-"
            for framework in frameworks
        ]
        lines.append(f"| {model} | {' | '.join(shown)} |")
    return [*lines, "", *bad], len(bad)


def main() -> int:
    """Run every framework on every cell; 1 where a cell is wrong."""
    asked = argparse.ArgumentParser()
    asked.add_argument("build", type=Path)
    asked.add_argument("--megatron", type=Path, default=None, help=f"source or git directory with {TAG}")
    asked.add_argument("--model", action="append", default=[])
    given = asked.parse_args()
    build, cells = given.build.resolve(), given.build.resolve() / "cells"
    expected = write(cells, Hwdb.load(), tuple(given.model) or MODELS)
    titan = HERE / "run_torchtitan.py"
    runs: list[tuple[str, list[str | Path]]] = [
        *(
            (f"torchtitan-{item}", [titan, item, cells, RECORDED / f"torchtitan-{item}.json"])
            for item in ("0.2.2", "0.3.0")
        ),
        ("deepspeed", [HERE / "run_deepspeed.py", cells]),
    ]
    if given.megatron is not None:
        flags = RECORDED / "megatron-0.16.1.json"
        source = megatron_source(build, given.megatron.resolve())
        runs.insert(0, ("megatron", [HERE / "run_megatron.py", source, cells, flags]))
    results: dict[str, Any] = {}
    for name, command in runs:
        python = environment(build, name)
        log = build / f"{name}.log"
        with log.open("w") as out:
            environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
            done = subprocess.run([python, *command], stdout=out, stderr=out, env=environ, check=False)
        answers = cells / f"{name}.json"
        if done.returncode or not answers.exists():
            say(f"{name} ended with {done.returncode}: see {log}")
            continue
        results |= json.loads(answers.read_text())
    accepted = {
        name: digest(cells / name)
        for name, row in expected.items()
        if outcome(row, results.get(name)) in ("built", "accepted")
    }
    if given.megatron is not None and not given.model:
        (RECORDED / "accepted.json").write_text(json.dumps(accepted, indent=0, sort_keys=True) + "\n")
        fields = {
            row["model"]: results[name]["fields"]
            for name, row in expected.items()
            if row["framework"] == "megatron" and name.endswith("-pp2-zero1-equal") and name in results
        }
        (RECORDED / "megatron-0.16.1-fields.json").write_text(json.dumps(fields, indent=0) + "\n")
    lines, bad = table(expected, results)
    say("\n".join(lines))
    (build / "table.md").write_text("\n".join(lines) + "\n")
    say(f"{len(expected)} cells, {bad} wrong or not run")
    return 1 if bad else 0


sys.exit(main())
