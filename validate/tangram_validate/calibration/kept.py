"""A disk cache of simulated steps, reused while runs, hardware rows and the code that predicts are unchanged.

The key is a fingerprint of the table, of the hardware database but for what the fit itself writes, and of
every module of ours that predicting loads.
"""

import hashlib
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tangram_sim.datafiles import shipped

WRITTEN = ("stacks.csv", "intervals.csv")  # by the fit: surfaces are played beside them
FITTING = (
    "fewrows",
    "shifts",
    "ownruns",
    "plausible",
    "stackfit",
    "stacks",
    "judge",
    "ranking",
    "baselines",
    "novelty",
    "intervals",
    "widths",
    "kept",
)

T = TypeVar("T")


def fingerprint(table: Path, overlays: Sequence[Path], *options: object) -> str:
    """The cache key (hexadecimal) of the steps simulated for a table of runs under some hwdb overlays."""
    digest = hashlib.sha256(repr(options).encode())
    digest.update(table.read_bytes())
    for folder in (shipped("hwdb"), *overlays):
        for path in sorted(Path(folder).rglob("*.*")):
            if path.is_file() and path.name not in WRITTEN:
                digest.update(path.name.encode() + path.read_bytes())
    for name in sorted(sys.modules):
        own = name.partition(".")[0] in ("tangram_sim", "tangram_validate")
        file = getattr(sys.modules[name], "__file__", None)
        if own and file and not (".calibration" in name and name.rpartition(".")[2] in FITTING):
            digest.update(name.encode() + Path(file).read_bytes())
    return digest.hexdigest()[:24]


def kept(folder: Path | None, key: str, make: Callable[[], T]) -> T:
    """The result of `make`, read from `folder` if it was stored there under `key`; None: no cache.

    Files are unpickled, which can run code: use only a folder that nobody else can write to.
    """
    if folder is None:
        return make()
    path = folder / f"{key}.pickle"
    if path.is_file():
        found: T = pickle.loads(path.read_bytes())
        return found
    made = make()
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(made))
    return made
