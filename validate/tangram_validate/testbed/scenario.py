"""Scenario files: an emulated cluster, its kinds of ranks, models and plans, fixed before any prediction."""

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tangram_sim.datafiles import read_yaml
from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.file_parts import first_problem
from tangram_sim.hwdb.model_file import from_model_file
from tangram_sim.models import Model
from tangram_sim.training.job import Job
from tangram_validate.testbed.emulated import Speed
from tangram_validate.testbed.network import IslandNet

FOLDER = Path(__file__).parent / "scenarios"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KindIn(_Part):
    """What a kind of rank does per second; real ranks repeat their work instead."""

    gflop_per_s: float = Field(0.0, ge=0)
    memory_gb_per_s: float = Field(50.0, gt=0)
    overhead_us: float = Field(0.0, ge=0)
    repeats: int = Field(1, ge=1)


class IslandIn(_Part):
    """Equal ranks behind one switch."""

    ranks: int = Field(ge=1, le=64)
    kind: str
    link_mbps: float = Field(gt=0)
    uplink_mbps: float = Field(gt=0)


class PlanIn(_Part):
    """A plan by its layout, good or bad; `layers` are blocks per stage."""

    name: str
    pp: int = 1
    tp: int = 1
    dp: int = 1
    vpp: int = 1
    micro_batch: int = 1
    layers: tuple[int, ...] = ()
    schedule: str = "1f1b"
    recompute: str = "none"
    zero_stage: int = 0
    order: tuple[str, ...] = ()


class WorkIn(_Part):
    """A model, a batch, and the plans tried beside those of the planners."""

    model: str
    global_batch: int = Field(ge=1)
    seq: int = Field(ge=1)
    plans: list[PlanIn] = []
    planners: list[str] = ["tangram", "uniform"]


class ScenarioIn(_Part):
    """A scenario file."""

    emulated: bool = True
    kinds: dict[str, KindIn]
    islands: list[IslandIn] = Field(min_length=1)
    models: dict[str, dict[str, Any]]
    work: list[WorkIn] = Field(min_length=1)


@dataclass(frozen=True)
class Scenario:
    """One cluster and what is run on it."""

    name: str
    facts: ScenarioIn

    @property
    def emulated(self) -> bool:
        """Whether compute is waited for rather than done."""
        return self.facts.emulated

    @property
    def network(self) -> tuple[IslandNet, ...]:
        """The network to build."""
        return tuple(
            IslandNet(island.ranks, island.link_mbps, island.uplink_mbps) for island in self.facts.islands
        )

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of every rank."""
        return tuple(island.kind for island in self.facts.islands for _ in range(island.ranks))

    @property
    def speeds(self) -> tuple[Speed, ...]:
        """What every rank does per second; () for real ranks."""
        if not self.emulated:
            return ()
        facts = (self.facts.kinds[kind] for kind in self.kinds)
        return tuple(
            Speed(fact.gflop_per_s * 1e9, fact.memory_gb_per_s * 1e9, fact.overhead_us * 1e-6)
            for fact in facts
        )

    @property
    def repeats(self) -> tuple[int, ...]:
        """How many times over every rank does its work."""
        return tuple(self.facts.kinds[kind].repeats for kind in self.kinds)

    def model(self, name: str) -> Model:
        """A model of the file."""
        return from_model_file(self.facts.models[name], f"{self.name}: models.{name}", name)

    def job(self, work: WorkIn, schedule: str = "1f1b") -> Job:
        """The job of a piece of work; the testbed computes in fp32."""
        return Job(work.global_batch, work.seq, "fp32", "adamw", schedule)

    def cluster(self) -> dict[str, Any]:
        """The cluster file that a planner sees: an island is a node; uplinks limit what two islands exchange.

        One rank alone may fill its island's uplink, so NICs (which a cluster file splits evenly over the
        ranks of a node) are as many as there are ranks, and the uplink is a limit between groups.
        """
        nodes = [
            {
                "count": 1,
                "gpu": gpu_name(island.kind),
                "gpus": island.ranks,
                "intra_link": link_name(island.link_mbps) if island.ranks > 1 else "none",
                "nic_gbps": island.ranks * island.uplink_mbps / 1000,
            }
            for island in self.facts.islands
        ]
        between = [
            {"groups": [a, b], "gbps": min(item.uplink_mbps, two.uplink_mbps) / 1000}
            for (a, item), (b, two) in combinations(enumerate(self.facts.islands), 2)
        ]
        return {"name": self.name, "nodes": nodes, "network": {"between": between}}


def gpu_name(kind: str) -> str:
    """The row of gpus.csv that a kind of rank gets."""
    return f"testbed-{kind}"


def link_name(mbps: float) -> str:
    """The row of links.csv that a shaped link gets."""
    return f"testbed-{mbps:g}M"


def scenario_names() -> tuple[str, ...]:
    """Shipped scenarios."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def load_scenario(name_or_path: str) -> Scenario:
    """A shipped scenario by name, or a file; raises BadInputError naming file and key."""
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        if name_or_path not in scenario_names():
            raise unknown_name("scenario", name_or_path, scenario_names(), "Or give a .yaml file.")
        path = FOLDER / f"{name_or_path}.yaml"
    try:
        facts = ScenarioIn.model_validate(read_yaml(path))
    except ValidationError as error:
        raise BadInputError(f"{path}: {first_problem(error)}") from None
    for island in facts.islands:
        if island.kind not in facts.kinds:
            raise unknown_name(f"kind in {path}", island.kind, facts.kinds)
        if facts.emulated and facts.kinds[island.kind].gflop_per_s <= 0:
            raise BadInputError(f"{path}: kinds.{island.kind}.gflop_per_s is missing")
    for work in facts.work:
        if work.model not in facts.models:
            raise unknown_name(f"model in {path}", work.model, facts.models)
    return Scenario(path.stem, facts)
