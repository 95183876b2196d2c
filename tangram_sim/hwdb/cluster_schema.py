"""Schema of a cluster file, and readable errors: the key, the value given, the values allowed."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from tangram_sim.errors import BadInputError
from tangram_sim.naming import fault_of_text

MAX_NODES = 100_000  # of one cluster: beyond the largest built, and small enough to list nodes one by one
_SHOWN = 5  # errors printed at once

Count = Annotated[int, Field(ge=1, le=MAX_NODES)]
GpuCount = Annotated[int, Field(ge=1, le=1024)]
Gbps = Annotated[float, Field(ge=1e-3, le=1e6)]
Microseconds = Annotated[float, Field(ge=0, le=1e7)]
Rate = Annotated[float, Field(gt=0, le=1e20)]
Amount = Annotated[float, Field(ge=0, le=1e9)]


def _one_line(text: str) -> str:
    """The text, if it has no control characters or line breaks, which would break scripts and logs."""
    if fault := fault_of_text(text):
        raise ValueError(f"holds {fault}; printable text on one line is wanted")
    return text


def _no_option(name: str) -> str:
    """The name, if it does not begin with a dash, so that no command reads it as an option."""
    if name.startswith("-"):
        raise ValueError("begins with a dash; letters, digits and dashes behind them are wanted")
    return name


Text = Annotated[str, Field(max_length=200), AfterValidator(_one_line)]
Name = Annotated[
    str, Field(min_length=1, max_length=200), AfterValidator(_one_line), AfterValidator(_no_option)
]
Pair = Annotated[list[int], Field(min_length=2, max_length=2)]


class _ClusterPart(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class GroupIn(_ClusterPart):
    """One group of equal nodes: a GPU kind and its surroundings, or a row of hwdb/nodes.csv."""

    count: Count = Field(description="number of equal nodes")
    node: Name | None = Field(None, description="row of hwdb/nodes.csv; the other keys override it")
    gpu: Name | None = Field(None, description="row of hwdb/gpus.csv")
    gpus: GpuCount | None = Field(None, description="GPUs per node")
    intra_link: Name | None = Field(None, description="row of hwdb/links.csv between GPUs of a node")
    links: list[Pair] | None = Field(None, description="GPU pairs joined by bridges, like [[0, 1], [2, 3]]")
    bridge: Name | None = Field(None, description="link class of those bridges; default: the GPU's own")
    nic_gbps: Gbps | None = Field(None, description="all NICs of a node together, Gbit/s, one direction")
    nics: Annotated[int, Field(ge=1, le=1024)] | None = Field(None, description="NICs per node")
    nic_latency_us: Microseconds | None = Field(None, description="latency of a network message, us")
    scale_up_nodes: Count | None = Field(None, description="nodes that share one scale-up domain")
    host: Text | None = Field(None, description="free text on the host")
    labels: list[Text] | None = Field(None, description="free labels")
    usd_per_hour: Amount | None = Field(None, description="price of one node")
    power_w: Amount | None = Field(None, description="power of one node")
    row: Text | None = Field(None, description="row of hwdb/nodes.csv that the figures came from")
    sockets: Annotated[int, Field(ge=1, le=64)] | None = Field(None, description="host bridges per node")
    pcie_switches: Annotated[int, Field(ge=0, le=1024)] | None = Field(
        None, description="PCIe switches per node; 0 hangs GPUs and NICs on host bridges"
    )


class LimitIn(_ClusterPart):
    """A limit on all traffic between two groups (or inside one, when both indices are equal)."""

    groups: Pair = Field(description="two indices into `nodes`, from 0")
    gbps: Gbps = Field(description="Gbit/s, one direction")
    latency_us: Microseconds = Field(0.0, description="latency, us; the NICs' where that is larger")


class NetworkIn(_ClusterPart):
    """The network between nodes."""

    oversubscription: Annotated[float, Field(ge=1, le=1e4)] = Field(
        1.0, description="summed NIC rate of a group over its uplink"
    )
    between: list[LimitIn] = Field([], description="limits between groups")


def _none_or_a_byte(rate: float) -> float:
    """The rate, if it is 0 or at least 1 byte/s: divisions by smaller rates overflow."""
    if 0 < rate < 1:
        raise ValueError("0 (no link), or 1 and more bytes/s")
    return rate


class GpuIn(_ClusterPart):
    """Properties of a GPU stated in the file itself, in SI units."""

    vendor: Text
    architecture: Text
    peaks_flop_per_s: dict[Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8"], Rate]
    memory_bytes: Rate
    memory_bytes_per_s: Rate
    power_w: Amount = 0.0
    measured: bool = False


class LinkIn(_ClusterPart):
    """Properties of a link class stated in the file itself, in SI units."""

    kind: Literal["nvlink", "nvlink-bridge", "xgmi", "pcie", "network", "none", "other"]
    bytes_per_s: Annotated[float, Field(ge=0, le=1e20), AfterValidator(_none_or_a_byte)]
    latency_s: Annotated[float, Field(ge=0, le=10)]


class HardwareIn(_ClusterPart):
    """GPUs and links defined in the file; they take precedence over the hardware database."""

    gpus: dict[Name, GpuIn] = {}
    links: dict[Name, LinkIn] = {}


class VertexIn(_ClusterPart):
    """A vertex of a fully stated graph."""

    name: Name = Field(description="any text, once")
    kind: Literal["gpu", "nvswitch", "pcie-switch", "host", "nic", "leaf", "spine"]
    gb_per_s: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        None, description="peer traffic that a host bridge turns around among its devices, GB/s"
    )


class EdgeIn(_ClusterPart):
    """An edge of a fully stated graph."""

    ends: Annotated[list[Name], Field(min_length=2, max_length=2)] = Field(description="two vertices")
    link: Name = Field(description="row of hwdb/links.csv; any text beside kind and gb_per_s")
    kind: Literal["nvlink", "nvlink-bridge", "xgmi", "pcie", "network", "host", "other"] | None = Field(
        None, description="kind of link; default: that of the link class"
    )
    gb_per_s: Annotated[float, Field(ge=0, le=1e9)] | None = Field(
        None, description="GB/s of each direction; default: that of the link class"
    )
    back_gb_per_s: Annotated[float, Field(ge=0, le=1e9)] | None = Field(
        None, description="GB/s from the second end to the first, where it differs"
    )
    latency_us: Microseconds | None = Field(None, description="latency, us; default: that of the link class")


class TopologyIn(_ClusterPart):
    """The interconnect graph: parameters of the derived fabric, or all vertices and edges."""

    rails: bool = Field(False, description="NICs of equal index share a leaf")
    leaf_nodes: Annotated[int, Field(ge=0, le=MAX_NODES)] = Field(
        0, description="nodes under one leaf; 0 = the whole group"
    )
    leaf_oversubscription: Annotated[float, Field(ge=1, le=1e4)] = Field(
        1.0, description="summed NIC rate under a leaf over its uplinks"
    )
    vertices: Annotated[list[VertexIn], Field(max_length=1_000_000)] = Field(
        [], description="the whole graph"
    )
    edges: Annotated[list[EdgeIn], Field(max_length=4_000_000)] = Field([], description="the whole graph")


class ClusterIn(_ClusterPart):
    """A cluster file."""

    name: Name | None = Field(None, description="default: the file's name")
    nodes: Annotated[list[GroupIn], Field(min_length=1, max_length=1000)] = Field(
        description="groups of equal nodes"
    )
    network: NetworkIn = Field(NetworkIn(), description="the network between nodes")
    hardware: HardwareIn = Field(HardwareIn(), description="figures that travel with the file")
    topology: TopologyIn = Field(TopologyIn(), description="the interconnect's graph")


# What each kind of pydantic error wants, in words; `{...}` are filled from the error's context.
_WANTED = {
    "int_type": "a whole number is wanted",
    "int_from_float": "a whole number is wanted",
    "int_parsing_size": "a whole number of ordinary size is wanted",
    "float_type": "a number is wanted",
    "finite_number": "a finite number is wanted",
    "bool_type": "true or false is wanted",
    "string_type": "text is wanted",
    "string_too_short": "text is wanted, not nothing",
    "string_too_long": "at most {max_length} characters are allowed",
    "list_type": "a list is wanted",
    "dict_type": "a mapping of keys is wanted",
    "model_type": "a mapping of keys is wanted",
    "model_attributes_type": "a mapping of keys is wanted",
    "greater_than": "more than {gt:g} is wanted",
    "greater_than_equal": "{ge:g} or more is wanted",
    "less_than_equal": "{le:g} or less is wanted",
    "too_short": "at least {min_length} is wanted",
    "too_long": "at most {max_length} are allowed",
    "literal_error": "allowed are {expected}",
}


def parse_cluster(data: Any, where: str) -> ClusterIn:
    """Check `data` against the format of a cluster file.

    Raises BadInputError that names `where`, the key's path, what was given and what is allowed.
    """
    if not isinstance(data, Mapping):
        given = "nothing" if data is None else _show(data)
        raise BadInputError(
            f"{where}: {given} given; a cluster is a mapping with the keys nodes, name, network"
        )
    for key in data:
        if not isinstance(key, str):
            raise BadInputError(f"{where}: key {_show(key)} is not text")
    try:
        return ClusterIn.model_validate(dict(data))
    except ValidationError as error:
        problems = [_in_words(problem) for problem in error.errors(include_url=False)]
    more = f"\n... and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    raise BadInputError("\n".join(f"{where}: {problem}" for problem in problems[:_SHOWN]) + more) from None


def _in_words(problem: Any) -> str:
    location: tuple[int | str, ...] = problem["loc"]
    path, kind = path_of(location), problem["type"]
    if kind == "missing":
        return f"{path} is missing{_about(location)}"
    if kind == "extra_forbidden":
        allowed = sorted(_keys_at(location[:-1]))
        near = get_close_matches(str(location[-1]), allowed, n=1)
        guess = f" did you mean {near[0]}?" if near else ""
        return f"{path}: unknown key;{guess} allowed are {', '.join(allowed)}"
    wanted = _WANTED.get(kind)
    if wanted is None:
        words = str(problem["msg"]).removeprefix("Value error, ")
        wanted = words[:1].lower() + words[1:]
    else:
        wanted = wanted.format(**problem.get("ctx", {}))
    text = problem["input"]
    if kind in ("int_type", "float_type") and isinstance(text, str) and _is_number(text):
        wanted += (
            f" without quotes, in plain digits like {float(text):g}"
            if "e" not in text.lower()
            else ", like 1.0e+3"
        )
    return f"{path}: {_show(text)} given; {wanted}{_about(location)}"


def path_of(location: tuple[int | str, ...]) -> str:
    """A location as text: `nodes[1].gpus` for ("nodes", 1, "gpus")."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step != "[key]":
            path += f".{step}" if path else str(step)
    return path


def _model_at(location: tuple[int | str, ...]) -> type[BaseModel] | None:
    steps = tuple(step for step in location if isinstance(step, str))
    if steps[:2] == ("hardware", "gpus") and len(steps) > 2:
        return GpuIn
    if steps[:2] == ("hardware", "links") and len(steps) > 2:
        return LinkIn
    known: dict[tuple[str, ...], type[BaseModel]] = {
        (): ClusterIn,
        ("nodes",): GroupIn,
        ("network",): NetworkIn,
        ("network", "between"): LimitIn,
        ("hardware",): HardwareIn,
        ("topology",): TopologyIn,
        ("topology", "vertices"): VertexIn,
        ("topology", "edges"): EdgeIn,
    }
    return known.get(steps)


def _keys_at(location: tuple[int | str, ...]) -> list[str]:
    model = _model_at(location)
    return list(model.model_fields) if model else []


def _about(location: tuple[int | str, ...]) -> str:
    """The key's description in the schema, in parentheses; empty where there is none."""
    model = _model_at(location[:-1])
    known = model.model_fields.get(str(location[-1])) if model and location else None
    return f" ({known.description})" if known and known.description else ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _show(value: Any) -> str:
    """A given value as text, shortened."""
    if isinstance(value, Mapping):
        return "a mapping of keys"
    text = f"a list of {len(value)}" if isinstance(value, list) and len(value) > 6 else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
