"""Reading the GPUs on offer: kinds with prices and how many there are, and the engine to serve with."""

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tangram_sim.datafiles import read_yaml
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tangram_sim.serving_planners.offers import GpuOffer


class _OfferGpuIn(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    price_per_hour: Annotated[float, Field(gt=0, le=1e9)]
    available: Annotated[int, Field(ge=0, le=10**7)] | None = None
    gpus_per_node: Annotated[int, Field(ge=1, le=1024)] = 8


class _OffersIn(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    gpus: Annotated[dict[str, _OfferGpuIn], Field(min_length=1, max_length=100)]
    engine: str | None = None
    precision: str | None = None


@dataclass(frozen=True, slots=True)
class Offers:
    """GPUs that may be rented, with engine and precision; these are empty where the file is silent."""

    gpus: tuple[GpuOffer, ...]
    engine: str = ""
    precision: str = ""


def load_offers(path: Path, hwdb: Hwdb) -> Offers:
    """The offers in a YAML file. Raises BadInputError, UnknownNameError for GPUs nobody knows."""
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise BadInputError(
            f"{path}: wanted is a mapping with `gpus`: each with price_per_hour and available"
        )
    try:
        given = _OffersIn.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadInputError(f"{path}: {place or 'document'}: {first['msg'].lower()}") from None
    gpus = tuple(
        GpuOffer(
            hwdb.gpu(name).name,
            one.price_per_hour,
            inf if one.available is None else one.available,
            one.gpus_per_node,
        )
        for name, one in given.gpus.items()
    )
    for gpu in gpus:
        if sum(other.name == gpu.name for other in gpus) > 1:
            raise BadInputError(f"{path}: {gpu.name} is offered twice, under two of its names")
    return Offers(gpus, given.engine or "", given.precision or "")
