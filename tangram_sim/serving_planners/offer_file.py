"""Reading the GPUs on offer: kinds with prices and how many there are, and the engine to serve with.

They are a file of offers, or the nodes of a cluster: a file, a shipped name, or nodes on one line.
"""

from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field

from tangram_sim.clusters import Cluster
from tangram_sim.datafiles import read_yaml
from tangram_sim.errors import BadInputError
from tangram_sim.file_parts import FilePart, Name
from tangram_sim.hwdb import Hwdb, load_cluster
from tangram_sim.hwdb.prices import assumed_rent, gpu_rent, rent_note
from tangram_sim.serving_planners.offers import GpuOffer


class _OfferGpuIn(FilePart):
    model_config = ConfigDict(frozen=True)

    price_per_hour: Annotated[float, Field(gt=0, le=1e9)] | None = None
    available: Annotated[int, Field(ge=0, le=10**7)] | None = None
    gpus_per_node: Annotated[int, Field(ge=1, le=1024)] = 8


class _OffersIn(FilePart):
    model_config = ConfigDict(frozen=True)

    gpus: Annotated[dict[Name, _OfferGpuIn], Field(min_length=1, max_length=100)]
    engine: Name | None = None
    precision: Name | None = None


@dataclass(frozen=True, slots=True)
class Offers:
    """GPUs that may be rented, with engine and precision (empty where the file does not give them)."""

    gpus: tuple[GpuOffer, ...]
    engine: str = ""
    precision: str = ""
    notes: tuple[str, ...] = ()  # on prices that nobody gave

    @property
    def unpriced(self) -> frozenset[str]:
        """GPU kinds whose price is not known."""
        return frozenset(gpu.name for gpu in self.gpus if not gpu.priced)


def load_offers(given: Path | str, hwdb: Hwdb, *, priced: bool = True) -> Offers:
    """The offers in a YAML file, or the GPUs of a cluster (a file, a shipped name, `DGX-H100:2+L40Sx8:1`).

    A kind without a price has the lowest dated rent of its nodes. If none is known, `priced` refuses the
    kind; otherwise a price is assumed (`assumed_rent`) and noted. Raises BadInputError, UnknownNameError.
    """
    path = Path(given)
    if path.exists() or path.suffix.lower() in (".yaml", ".yml"):
        data = read_yaml(path)
        if isinstance(data, dict) and "gpus" in data:
            return _with_prices(_read_offers(data, path, hwdb), hwdb, str(given), priced=priced)
        if not isinstance(data, dict) or "nodes" not in data:
            raise BadInputError(
                f"{path}: wanted is a mapping with `gpus`, each with price_per_hour and available, or a "
                "cluster file with `nodes`"
            )
    return _with_prices(cluster_offers(load_cluster(str(given), hwdb)), hwdb, str(given), priced=priced)


def cluster_offers(cluster: Cluster) -> Offers:
    """The GPUs of a cluster as offers, at the prices of its nodes; 0: no price."""
    found: dict[str, GpuOffer] = {}
    for group in cluster.groups:
        node, name = group.node, group.node.gpu.name
        mine = GpuOffer(name, node.usd_per_hour / node.gpus, float(node.gpus * group.count), node.gpus)
        there = found.get(name, mine)
        if there is not mine:
            mine = replace(
                there,
                available=there.available + mine.available,
                gpus_per_node=min(there.gpus_per_node, mine.gpus_per_node),
                lost_together=max(there.lost_together or there.gpus_per_node, mine.gpus_per_node),
                usd_per_hour=max(there.usd_per_hour, mine.usd_per_hour),
            )
        found[name] = mine
    return Offers(tuple(found.values()))


def _with_prices(offers: Offers, hwdb: Hwdb, source: str, *, priced: bool) -> Offers:
    """The offers with a price for every kind, and notes on prices that the user did not give."""
    gpus, notes = [], list[str]()
    for gpu in offers.gpus:
        if gpu.usd_per_hour > 0:
            gpus.append(gpu)
            continue
        usd, known = gpu_rent(hwdb, gpu.name)
        if usd:
            notes.append(rent_note(gpu.name, usd, known))
            gpus.append(replace(gpu, usd_per_hour=usd))
            continue
        if priced:
            raise BadInputError(
                f"{source}: what does a {gpu.name} cost? No dated price is known; give it in a file of "
                f"offers, like gpus: {{{gpu.name}: {{price_per_hour: 2.5, available: 8}}}}"
            )
        usd = assumed_rent(hwdb, gpu.name)
        notes.append(
            f"no dated price of {gpu.name} is known: {usd:.2g} USD/h each is assumed, by its memory and "
            "arithmetic beside kinds that have one; half to twice that may be asked"
        )
        gpus.append(replace(gpu, usd_per_hour=usd, priced=False))
    return replace(offers, gpus=tuple(gpus), notes=tuple(notes))


def _read_offers(data: dict[str, object], path: Path, hwdb: Hwdb) -> Offers:
    read = _OffersIn.read(data, str(path))
    gpus = tuple(
        GpuOffer(
            hwdb.gpu(name).name,
            offer_gpu.price_per_hour or 0.0,
            inf if offer_gpu.available is None else offer_gpu.available,
            offer_gpu.gpus_per_node,
        )
        for name, offer_gpu in read.gpus.items()
    )
    for gpu in gpus:
        if sum(other.name == gpu.name for other in gpus) > 1:
            raise BadInputError(f"{path}: {gpu.name} is offered twice, under two of its names")
    return Offers(gpus, read.engine or "", read.precision or "")
