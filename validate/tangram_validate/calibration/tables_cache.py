"""A disk cache of tables of simulated steps, valid until runs, hardware rows or predicting code change.

The key is a fingerprint of the table, of the hardware database but for what the fit itself writes, and of
every module of ours that predicting loads.
"""

import hashlib
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from tangram_sim.datafiles import read_text, shipped, write_whole
from tangram_sim.digests import ChangedFileWarning, content_key
from tangram_sim.errors import BadInputError
from tangram_validate.calibration.surfaces import Mixtures, Surface

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
    "tables_cache",
)


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


def cached(folder: Path | None, key: str, make: Callable[[], Mixtures]) -> Mixtures:
    """The tables that `make` answers, read from `folder` if stored there under `key`; None: no cache.

    Files are JSON and hold numbers only. One that is not as it was written is warned of and made anew.
    """
    if folder is None:
        return make()
    path = folder / f"{key}.json"
    if path.is_file():
        try:
            return _mixtures(json.loads(read_text(path)))
        except (BadInputError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            warnings.warn(
                f"{path}: not as it was written; its steps are simulated again",
                ChangedFileWarning,
                stacklevel=2,
            )
    made = make()
    tables = _tables(made)
    write_whole(path, json.dumps({"digest": content_key(tables), "tables": tables}) + "\n")
    return made


def _tables(mixtures: Mixtures) -> dict[str, Any]:
    arrays = {field.name: getattr(mixtures.surface, field.name) for field in fields(Surface)}
    arrays |= {"owner": mixtures.owner, "weight": mixtures.weight}
    # With shapes: those of tables without rows are not seen in lists.
    return {name: {"shape": array.shape, "values": array.ravel().tolist()} for name, array in arrays.items()}


def _mixtures(content: Any) -> Mixtures:
    """Raises ValueError, TypeError, KeyError or AttributeError for content that was not written here."""
    tables = content["tables"]
    if content_key(tables) != content["digest"]:
        raise ValueError("the digest is of other content")
    arrays = {
        name: np.array(table["values"], np.int64 if name == "owner" else np.float64).reshape(table["shape"])
        for name, table in tables.items()
    }
    owner, weight = arrays.pop("owner"), arrays.pop("weight")
    return Mixtures(Surface(**arrays), owner, weight)
