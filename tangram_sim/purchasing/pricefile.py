"""The price file (`--prices`): figures that only the buyer knows, each with its date and source.

Missing figures are not assumed: a cost that needs one is not computed, and the missing keys are named.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from tangram_sim.datafiles import read_json_or_yaml
from tangram_sim.errors import BadInputError, TangramError, unknown_name
from tangram_sim.file_parts import FilePart, Name
from tangram_sim.hwdb import Hwdb
from tangram_sim.hwdb.prices import Figure, gpu_rents, kind_rent, node_prices
from tangram_sim.purchasing.fleets import Member, Purchase
from tangram_sim.studies.usual_failures import usual_mtbf_hours

Positive = Annotated[float, Field(gt=0, le=1e12)]
Amount = Annotated[float, Field(ge=0, le=1e12)]
Text = Annotated[str, Field(min_length=1, max_length=500)]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Prices and needs of one node; None: not stated anywhere."""

    rent_usd_per_hour: Figure | None = None
    reserved_usd_per_hour: Figure | None = None
    reserved_least_days: Figure | None = None  # that nodes are reserved for, and paid for, at that price
    reserved_most_days: Figure | None = None
    spot_usd_per_hour: Figure | None = None
    capital_usd: Figure | None = None
    rack_units: Figure | None = None
    power_w: Figure | None = None
    delivery_days: Figure | None = None
    available: Figure | None = None
    mtbf_hours: Figure | None = None


ALWAYS = Figure(1.0, "assumed: trains all the time")
NO_UPKEEP = Figure(0.0, "assumed: none")


@dataclass(frozen=True, slots=True)
class Economics:
    """Figures that hold for all nodes; None: not stated."""

    amortisation_years: Figure | None = None
    pue: Figure | None = None
    usd_per_kwh: Figure | None = None
    hosting_usd_per_kw_month: Figure | None = None  # of a kW that machines may draw, for what is not rented
    utilisation: Figure = ALWAYS
    upkeep_per_year: Figure = NO_UPKEEP
    mtbf_hours: Figure | None = None  # of one node, where the node states none
    checkpoint_s: Figure | None = None
    restart_s: Figure | None = None


ECONOMICS = Economics()


SPOT_LOSSES = 0.2  # per node-hour, where nodes are rented on spot and nobody says: 0.06 to 1.4 were seen
SPOT_RETURN_S = 600.0


@dataclass(frozen=True, slots=True)
class Preemption:
    """How spot nodes are withdrawn and return, and how the job continues meanwhile."""

    losses_per_node_hour: float
    return_s: float  # mean time until another one takes a lost one's place
    policy: str  # restart: wait for it and start from the checkpoint; shrink: go on without the replica


@dataclass(frozen=True)
class Prices:
    """All known prices: the shipped ones, overridden by the buyer's file."""

    nodes: Mapping[str, NodeFacts] = field(default_factory=dict)  # by name as given, or hwdb row
    economics: Economics = ECONOMICS
    named: tuple[str, ...] = ()  # nodes that the buyer's file speaks of
    preemption: Preemption | None = None  # of what is bought, where that is rented on spot
    gpu_rents: Mapping[str, tuple[float, str, Figure]] = field(default_factory=dict)  # by kind, of one GPU
    hwdb: Hwdb | None = None  # that says what nodes draw by what they do; None: nameplates count

    def of(self, priced: Member | Purchase) -> NodeFacts:
        """The figures of one node, by hwdb row or by its name in the price file.

        A node named by its GPUs (`H100-SXM5-80GBx8`) rents at that many times the lowest rent of the kind.
        """
        name, node = priced.name, priced.node
        facts = self.nodes.get(name, NodeFacts())
        if facts.rent_usd_per_hour or name in self.named or name != f"{node.gpu.name}x{node.gpus}":
            return facts
        return replace(facts, rent_usd_per_hour=kind_rent(self.gpu_rents, node))


class _NodePriceIn(FilePart):
    rent_usd_per_hour: Positive | None = None
    reserved_usd_per_hour: Positive | None = None
    reserved_least_days: Amount | None = None
    reserved_most_days: Positive | None = None
    spot_usd_per_hour: Positive | None = None
    capital_usd: Positive | None = None
    rack_units: Positive | None = None
    power_kw: Positive | None = None
    delivery_days: Amount | None = None
    available: Annotated[int, Field(ge=0, le=100_000)] | None = None
    mtbf_hours: Positive | None = None
    date: date
    source: Text


class _EconomicsIn(FilePart):
    amortisation_years: Annotated[float, Field(gt=0, le=100)] | None = None
    pue: Annotated[float, Field(ge=1, le=10)] | None = None
    usd_per_kwh: Annotated[float, Field(ge=0, le=100)] | None = None
    hosting_usd_per_kw_month: Amount | None = None
    utilisation: Annotated[float, Field(gt=0, le=1)] | None = None
    upkeep_per_year: Annotated[float, Field(ge=0, le=10)] | None = None
    mtbf_hours: Positive | None = None
    checkpoint_s: Amount | None = None
    restart_s: Amount | None = None
    date: date
    source: Text


class _PricesIn(FilePart):
    nodes: dict[Name, _NodePriceIn] = Field({})
    economics: _EconomicsIn | None = None


def load_prices(path: Path | None, hwdb: Hwdb) -> Prices:
    """The shipped prices, overridden by those of the buyer's YAML or JSON file.

    Names under `nodes` are rows of hwdb/nodes.csv or names of node files. Raises BadInputError naming file
    and key, also for a figure without `date` and `source`.
    """
    known = {name: NodeFacts(**prices) for name, prices in node_prices(hwdb).items()}
    rents = gpu_rents(hwdb)
    if path is None:
        return Prices(known, with_failures(ECONOMICS), gpu_rents=rents)
    data = read_json_or_yaml(path)
    if not isinstance(data, Mapping):
        raise BadInputError(f"{path}: a price file is a mapping with the keys nodes and economics")
    try:
        parsed = _PricesIn.model_validate(dict(data))
    except ValidationError as error:
        raise BadInputError("\n".join(f"{path}: {_in_words(item)}" for item in error.errors()[:5])) from None
    named = []
    for given, entry in parsed.nodes.items():
        try:
            name = hwdb.row("nodes", given).name
        except TangramError:
            name = given  # a node file's own name; nobody else is to know it
        named.append(name)
        old = known.get(name, NodeFacts())
        known[name] = NodeFacts(**{**_fields(old), **_figures(entry)})
    economics = Economics()
    if parsed.economics is not None:
        economics = Economics(**{**_fields(economics), **_figures(parsed.economics)})
    return Prices(known, with_failures(economics), tuple(named), gpu_rents=rents)


def with_failures(economics: Economics) -> Economics:
    """The economics with a published rate of failures where they state none."""
    if economics.mtbf_hours is not None:
        return economics
    hours, source = usual_mtbf_hours()
    return replace(economics, mtbf_hours=Figure(hours, source))


def _fields(noun: NodeFacts | Economics) -> dict[str, Any]:
    return {item.name: getattr(noun, item.name) for item in fields(noun)}


def _figures(entry: _NodePriceIn | _EconomicsIn) -> dict[str, Figure]:
    """The figures that an entry states, each with the entry's date and source."""
    stated = entry.model_dump(exclude_none=True, exclude={"date", "source"})
    if "power_kw" in stated:
        stated["power_w"] = stated.pop("power_kw") * 1000.0
    return {key: Figure(float(value), entry.source, entry.date.isoformat()) for key, value in stated.items()}


def _in_words(problem: Any) -> str:
    path = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing" and problem["loc"][-1] in ("date", "source"):
        return f"{path} is missing: a figure without a day and a source does not count"
    if problem["type"] == "extra_forbidden":
        parts: dict[str, type[BaseModel]] = {"nodes": _NodePriceIn, "economics": _EconomicsIn}
        model: type[BaseModel] = parts.get(
            str(problem["loc"][0]) if len(problem["loc"]) > 1 else "", _PricesIn
        )
        return f"{path}: {unknown_name('key', str(problem['loc'][-1]), model.model_fields)}"
    if problem["type"] == "missing":
        return f"{path} is missing"
    words = str(problem["msg"])
    return f"{path}: {problem['input']!r} given; {words[:1].lower()}{words[1:]}"
