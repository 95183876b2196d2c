"""Weights for a router in front of the groups: the share of each request type that goes to each group."""

import json

from tangram_sim.datafiles import parse_json
from tangram_sim.errors import BadInputError
from tangram_sim.export.service.groups import ServiceLaunch

FILE = "router.json"


def write(service: ServiceLaunch) -> str:
    """JSON with the request types and every group's share of each, for smooth weighted round robin."""
    return (
        json.dumps(
            {
                "policy": "smooth weighted round robin by type; inside a group all replicas alike",
                "types": [
                    {"input_tokens": isl, "output_tokens": osl, **({"model": model} if model else {})}
                    for isl, osl, model in service.types
                ],
                "groups": [
                    {
                        "group": number,
                        "name": group.name,
                        **({"role": group.role} if group.role != "both" else {}),
                        "replicas": group.count,
                        "shares": list(shares),
                    }
                    for number, (group, shares) in enumerate(zip(service.groups, service.shares, strict=True))
                ],
            },
            indent=1,
        )
        + "\n"
    )


def read(text: str) -> tuple[tuple[tuple[float, ...], ...], tuple[tuple[float, float, str], ...]]:
    """(shares by group and type, types). Raises BadInputError for another file."""
    try:
        data = parse_json(text, FILE)
        shares = tuple(tuple(item["shares"]) for item in data["groups"])
        types = tuple(
            (item["input_tokens"], item["output_tokens"], item.get("model", "")) for item in data["types"]
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BadInputError(f"{FILE}: not router weights of `tangram serve export`: {error}") from None
    return shares, types
