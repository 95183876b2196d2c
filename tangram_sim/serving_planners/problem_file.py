"""Reading PROBLEM.json, the input of `tangram serve plan`; errors name the key and what was given."""

from collections.abc import Sequence
from difflib import get_close_matches
from math import inf
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from tangram_sim.datafiles import read_json
from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.serving_planners.flow_problem import FlowNode, FlowProblem
from tangram_sim.serving_planners.problem import (
    COST,
    DECODE,
    MAKESPAN,
    NODE,
    PREFILL,
    WHOLE,
    LossScenario,
    OfferedGpu,
    RentalProblem,
    ReplicaConfiguration,
    RequestType,
)
from tangram_sim.serving_planners.problem_schema import (
    ConfigurationIn,
    FlowIn,
    RentalIn,
    RequestTypeIn,
    ScenarioIn,
)
from tangram_sim.units import GIGA

_SHOWN = 5
_IGNORED = {"id", "note", "answer"}  # of a collection of solved problems


def load_problem(path: Path, chosen: str | None = None) -> tuple[RentalProblem | FlowProblem, list[str]]:
    """(the problem in a file, its unknown keys).

    A file may hold a list of problems, of which `chosen` selects one by its `id`. Raises BadInputError.
    """
    data = read_json(path)
    if isinstance(data, list):
        known = [str(item.get("id", place)) for place, item in enumerate(data) if isinstance(item, dict)]
        if chosen is None and len(data) == 1:
            data = data[0]
        elif chosen in known:
            data = next(item for item in data if isinstance(item, dict) and str(item.get("id")) == chosen)
        elif chosen is None:
            raise BadInputError(
                f"{path}: holds {len(data)} problems; name one with `id=`: {', '.join(known[:12])}"
            )
        else:
            raise unknown_name("problem", chosen, known)
    elif chosen is not None and (not isinstance(data, dict) or str(data.get("id")) != chosen):
        raise BadInputError(f"{path}: holds no problem with id {chosen!r}; leave `id=` out")
    return read_problem(data, str(path))


def read_problem(data: Any, source: str = "problem") -> tuple[RentalProblem | FlowProblem, list[str]]:
    """(the problem in a JSON object, its unknown keys). Raises BadInputError, UnknownNameError."""
    kinds = ("makespan", "cost", "robust", "flow")
    if not isinstance(data, dict):
        raise BadInputError(f"{source}: a problem is a JSON object with a key `kind`: {', '.join(kinds)}")
    if "kind" not in data:
        raise BadInputError(f"{source}: the key `kind` is missing; give one of {', '.join(kinds)}")
    if data["kind"] not in kinds:
        raise unknown_name("kind of problem", str(data["kind"]), kinds)
    shape: type[RentalIn] | type[FlowIn] = FlowIn if data["kind"] == "flow" else RentalIn
    try:
        given = shape.model_validate(data)
    except ValidationError as error:
        raise BadInputError(f"{source}: {_words(error)}") from None
    ignored = sorted(_strange(given, source))
    problem = _flow(given, source) if isinstance(given, FlowIn) else _rental(given, source)
    return problem, ignored


def _words(error: ValidationError) -> str:
    """The first few validation errors as text, each with its key."""
    told = []
    for item in error.errors()[:_SHOWN]:
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in item["loc"]).lstrip(
            "."
        )
        given = item["input"]
        if item["type"] == "too_short":
            told.append(f"{path}: nothing is listed; one entry at least is wanted")
            continue
        plain = isinstance(given, str | int | float | bool | None) and item["type"] != "missing"
        told.append(f"{path}: {item['msg'].lower()}" + (f", given {given!r}" if plain else ""))
    more = len(error.errors()) - _SHOWN
    return "; ".join(told) + (f"; and {more} more" if more > 0 else "")


def _strange(given: BaseModel, source: str, path: str = "") -> set[str]:
    """Unknown keys of the file. Raises BadInputError for one that looks like a misspelled known key."""
    known = type(given).model_fields
    found = set()
    for key in given.model_extra or {}:
        if not path and key in _IGNORED:
            continue
        near = [
            name
            for name in get_close_matches(key, known, n=1, cutoff=0.8)
            if name not in given.model_fields_set
        ]
        if near:
            raise BadInputError(f"{source}: unknown key {path + key!r}; did you mean {path + near[0]!r}?")
        found.add(path + key)
    for name in known:
        value = getattr(given, name)
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        for part in parts:
            if isinstance(part, BaseModel):
                found |= _strange(part, source, f"{path}{name}.")
    return found


def _rental(given: RentalIn, source: str) -> RentalProblem:
    names = list(given.gpus)
    gpus = tuple(
        OfferedGpu(
            name,
            offered_gpu.price_per_hour,
            inf if offered_gpu.available is None else offered_gpu.available,
            offered_gpu.gpus_per_node,
        )
        for name, offered_gpu in given.gpus.items()
    )
    types, objective = _types(given, source)
    configurations = tuple(
        _configuration(configuration, gpus, given.workload, source) for configuration in given.configurations
    )
    _once([configuration.name for configuration in configurations], "configurations", source)
    if given.kind == "robust" and not given.scenarios:
        raise BadInputError(
            f"{source}: a robust problem needs `scenarios`, like {{'lost': '{names[0]}', 'coverage': 0.8}}"
        )
    if given.slices and (objective != COST or given.scenarios):
        raise BadInputError(
            f"{source}: `slices` belong to problems of kind cost without scenarios; leave them away"
        )
    budget = inf if given.budget_per_hour is None else given.budget_per_hour
    if objective == MAKESPAN and budget == inf:
        free = [gpu.name for gpu in gpus if gpu.available == inf]
        if free:
            raise BadInputError(
                f"{source}: nothing limits the plan: give `budget_per_hour`, or `available` of "
                f"{', '.join(free)}"
            )
    scenarios = tuple(
        _scenario(place, scenario, gpus, configurations, source)
        for place, scenario in enumerate(given.scenarios)
    )
    if budget == inf and any(scenario.price_factors for scenario in scenarios):
        raise BadInputError(
            f"{source}: a `price_factor` means something under a `budget_per_hour` only; give one"
        )
    roles = {configuration.role for configuration in configurations}
    for role, other in ((PREFILL, DECODE), (DECODE, PREFILL)):
        if role in roles and other not in roles:
            raise BadInputError(
                f"{source}: configurations of role {role} and none of {other}; give both, or neither"
            )
    if given.slices and roles != {WHOLE}:
        raise BadInputError(f"{source}: `slices` are of whole requests; leave out roles or slices")
    return RentalProblem(
        objective,
        gpus,
        configurations,
        types,
        budget_usd_per_hour=budget,
        slices=given.slices or 0,
        utilisation=given.utilisation,
        scenarios=scenarios,
        link_bytes_per_s=inf if given.link_gb_per_s is None else given.link_gb_per_s * GIGA,
    )


def _types(given: RentalIn, source: str) -> tuple[tuple[RequestType, ...], str]:
    """(request types, objective); amounts given as requests mean makespan, given as rates cost."""
    rated = [request_type.rate is not None for request_type in given.workload]
    counted = [request_type.requests is not None for request_type in given.workload]
    for place, (rate, count) in enumerate(zip(rated, counted, strict=True)):
        if rate == count:
            both = "both `requests` and `rate`" if rate else "neither `requests` nor `rate`"
            raise BadInputError(f"{source}: workload[{place}] has {both}; give one of them")
    if any(rated) and any(counted):
        raise BadInputError(f"{source}: workload has `requests` in some types and `rate` in others; use one")
    wanted = {"makespan": MAKESPAN, "cost": COST, "robust": COST if all(rated) else MAKESPAN}[given.kind]
    if wanted == MAKESPAN and any(rated):
        raise BadInputError(
            f"{source}: a makespan is of a batch: give `requests` in every workload type, not `rate`"
        )
    if wanted == COST and any(counted):
        raise BadInputError(
            f"{source}: a cost is of a steady rate: give `rate` in every workload type, not `requests`"
        )
    types = []
    for place, request_type in enumerate(given.workload):
        amount = request_type.rate if request_type.requests is None else request_type.requests
        shape = (
            f" ({request_type.isl:g} in, {request_type.osl:g} out)"
            if request_type.isl or request_type.osl
            else ""
        )
        owner = f" of {request_type.model}" if request_type.model else ""
        name = request_type.name or f"type {place}{owner}{shape}"
        types.append(
            RequestType(
                name,
                amount or 0.0,
                request_type.isl,
                request_type.osl,
                request_type.model or "",
                request_type.kv_bytes,
            )
        )
    if not sum(request_type.amount for request_type in types) > 0:
        raise BadInputError(f"{source}: the workload is empty: every type has 0 requests")
    return tuple(types), wanted


def _configuration(
    given: ConfigurationIn, gpus: Sequence[OfferedGpu], workload: Sequence[RequestTypeIn], source: str
) -> ReplicaConfiguration:
    names = [gpu.name for gpu in gpus]
    for name in given.gpus:
        if name not in names:
            raise unknown_name(f"GPU in configuration {given.name!r} of {source}", name, names)
    own = [
        request_type.model is None or given.model is None or request_type.model == given.model
        for request_type in workload
    ]
    rates = [rate or 0.0 for rate in given.throughput]
    if len(rates) == sum(own) < len(workload):
        left = iter(rates)
        rates = [next(left) if mine else 0.0 for mine in own]
    if len(rates) != len(workload):
        raise BadInputError(
            f"{source}: configuration {given.name!r} has {len(given.throughput)} throughputs for "
            f"{len(workload)} workload types; give one for each, null where it cannot serve the type"
        )
    rates = [rate if mine else 0.0 for rate, mine in zip(rates, own, strict=True)]
    counts = tuple(given.gpus.get(name, 0) for name in names)
    most = inf if given.most is None else given.most
    usd = sum(count * gpu.usd_per_hour for count, gpu in zip(counts, gpus, strict=True))
    return ReplicaConfiguration(
        given.name,
        gpus=counts,
        rps=tuple(rates),
        usd_per_hour=given.price_per_hour or usd,
        spot=given.spot,
        most=most,
        role=given.role,
    )


def _scenario(
    place: int,
    given: ScenarioIn,
    gpus: Sequence[OfferedGpu],
    configurations: Sequence[ReplicaConfiguration],
    source: str,
) -> LossScenario:
    """One scenario; `lost` names GPU kinds, configurations, `spot` (all spot configurations) or any `node`.

    If some configurations rent a GPU kind as spot instances, losing the kind loses these configurations only.
    """
    kinds, names = [gpu.name for gpu in gpus], [configuration.name for configuration in configurations]
    lost: set[int] = set()
    words = [given.lost] if isinstance(given.lost, str) else given.lost
    for word in words:
        if word == NODE and word not in [*kinds, *names]:
            continue
        if word in kinds:
            holding = {
                c for c, configuration in enumerate(configurations) if configuration.gpus[kinds.index(word)]
            }
            spot = {c for c in holding if configurations[c].spot}
            lost |= spot or holding
        elif word in names:
            lost.add(names.index(word))
        elif word == "spot":
            lost |= {c for c, configuration in enumerate(configurations) if configuration.spot}
        else:
            raise unknown_name(
                f"GPU or configuration lost in scenario {place} of {source}",
                word,
                [*kinds, *names, "spot", NODE],
            )
    for word in given.price_factor:
        if word not in kinds:
            raise unknown_name(f"GPU of price_factor in scenario {place} of {source}", word, kinds)
    factors = tuple(given.price_factor.get(kind, 1.0) for kind in kinds) if given.price_factor else ()
    name = given.name or (f"{' and '.join(words)} lost" if words else f"{place}")
    return LossScenario(name, frozenset(lost), given.coverage, given.rate_factor, factors, NODE in words)


def _flow(given: FlowIn, source: str) -> FlowProblem:
    size, links = len(given.nodes) + 1, given.link_tokens_per_s
    if len(links) != size or any(len(row) != size for row in links):
        raise BadInputError(
            f"{source}: link_tokens_per_s must have {size} rows of {size} numbers: one for each of the "
            f"{len(given.nodes)} nodes, and the host last"
        )
    nodes = tuple(FlowNode(node.name, tuple(node.tokens_per_s[: given.layers])) for node in given.nodes)
    return FlowProblem(given.layers, nodes, tuple(tuple(row) for row in links))


def _once(names: Sequence[str], what: str, source: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise BadInputError(f"{source}: {what} has {name!r} twice; names must differ")
