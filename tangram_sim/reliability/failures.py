"""Failure classes: independent Poisson processes, their rates on a fleet, and the state that each loses."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from tangram_sim.datafiles import read_yaml_mapping, shipped
from tangram_sim.errors import BadInputError, UnknownNameError, unknown_name
from tangram_sim.file_parts import FilePart
from tangram_sim.units import DAY_S, HOUR_S

Takes = Literal["none", "process", "node", "leaf", "all"]
REACH: tuple[Takes, ...] = ("none", "process", "node", "leaf", "all")  # each takes what those before it take


@dataclass(frozen=True, slots=True)
class FailureClass:
    """One kind of failure: a Poisson process on every node (of one GPU kind), or on the job as a whole."""

    name: str
    takes: Takes  # state lost with it: of a process, a node, a leaf of the network
    per_node_s: float = 0.0  # failures per node-second
    per_job_s: float = 0.0  # failures per second, whatever the size
    detect_s: float | None = None  # None: as the recovery says
    repair_s: float = 0.0  # until the node is back
    gpu: str = ""  # of nodes with this GPU only; empty: of all

    def rate_per_s(self, nodes: Mapping[str, int]) -> float:
        """Failures per second of a job on `nodes` by GPU kind."""
        struck = nodes.get(self.gpu, 0) if self.gpu else sum(nodes.values())
        return self.per_node_s * struck + (self.per_job_s if struck else 0.0)


@dataclass(frozen=True, slots=True)
class FailureModel:
    """Failure classes of a cluster; `source` says where their rates come from."""

    name: str
    classes: tuple[FailureClass, ...]
    source: str

    def mtbf_s(self, nodes: Mapping[str, int]) -> float:
        """Mean seconds between failures of a job on `nodes` by GPU kind; inf where nothing fails."""
        rate = sum(failure.rate_per_s(nodes) for failure in self.classes)
        return 1.0 / rate if rate > 0 else float("inf")

    def per_1000_node_days(self, nodes: Mapping[str, int]) -> float:
        """Failures per 1,000 node-days, all classes together: the unit of published cluster studies."""
        count = sum(nodes.values())
        rate = sum(failure.rate_per_s(nodes) for failure in self.classes)
        return rate / count * DAY_S * 1000.0 if count else 0.0


class _Class(FilePart):
    name: str
    per_1000_node_days: float | None = Field(None, ge=0)
    per_1000_job_days: float | None = Field(None, ge=0)
    takes: Takes = "node"
    detect_s: float | None = Field(None, ge=0)
    repair_h: float = Field(0.0, ge=0)
    gpu: str = ""


class _FailureFile(FilePart):
    name: str = ""
    source: str = ""
    classes: list[_Class] = Field(min_length=1)


def presets() -> list[str]:
    """Names of the shipped failure models."""
    return sorted(path.stem for path in (shipped("hwdb") / "failures").glob("*.yaml"))


def load_failures(given: str) -> FailureModel:
    """The failure model of a preset's name, or of a YAML file of failure classes.

    Raises UnknownNameError where `given` is neither, BadInputError for malformed files and negative rates; a
    class of rate zero never occurs.
    """
    path = shipped("hwdb") / "failures" / f"{given}.yaml"
    if given not in presets():
        path = Path(given)
        if not path.is_file():
            raise unknown_name("failure preset", given, presets(), "Or give a YAML file with `classes`.")
    data = read_yaml_mapping(path, "`classes`, and `name` and `source`")
    found = _FailureFile.read(data, str(path))
    classes = tuple(_class(row, path) for row in found.classes)
    names = [failure.name for failure in classes]
    for name in names:
        if names.count(name) > 1:
            raise BadInputError(f"{path}: class {name!r} is given {names.count(name)} times; keep one")
    return FailureModel(found.name or path.stem, classes, found.source or str(path))


def _class(row: _Class, path: Path) -> FailureClass:
    per_node, per_job = row.per_1000_node_days, row.per_1000_job_days
    if (per_node is None) == (per_job is None):
        raise BadInputError(
            f"{path}: class {row.name!r}: give one of per_1000_node_days and per_1000_job_days, 0 or more"
        )
    thousand_days = 1000.0 * DAY_S
    return FailureClass(
        row.name,
        row.takes,
        per_node_s=(per_node or 0.0) / thousand_days,
        per_job_s=(per_job or 0.0) / thousand_days,
        detect_s=row.detect_s,
        repair_s=row.repair_h * HOUR_S,
        gpu=row.gpu,
    )


def require_kinds(model: FailureModel, known: Mapping[str, int]) -> None:
    """Raise UnknownNameError for classes restricted to a GPU that the fleet does not have."""
    for failure in model.classes:
        if failure.gpu and failure.gpu not in known:
            raise UnknownNameError(
                f"failure class {failure.name!r} is restricted to {failure.gpu}, and the plan uses "
                f"{', '.join(known)}; leave `gpu` out, or name one of these"
            )
