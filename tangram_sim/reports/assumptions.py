"""Names in words for the assumptions that `--sensitivity` varies."""

import re

_NODE = {
    "capital_usd": "price of one {}",
    "rent_usd_per_hour": "rent of one {} an hour",
    "reserved_usd_per_hour": "reserved price of one {} an hour",
    "spot_usd_per_hour": "spot price of one {} an hour",
    "power_w": "power of one {}, W",
    "mtbf_hours": "hours between failures of one {}",
    "rack_units": "rack units of one {}",
    "delivery_days": "days until a {} is delivered",
}
_ECONOMICS = {
    "amortisation_years": "years until nodes are written off",
    "pue": "power drawn over power of nodes (PUE)",
    "usd_per_kwh": "USD a kWh",
    "hosting_usd_per_kw_month": "USD a month to host a kW",
    "utilisation": "share of the time in training",
    "upkeep_per_year": "upkeep a year, share of the capital",
    "mtbf_hours": "hours between failures of a node",
    "checkpoint_s": "seconds of a checkpoint",
    "restart_s": "seconds of a restart",
}
# (kernel class, parameter) of an efficiency row; {} is the GPU with its number type.
_ROWS = {
    ("gemm", "efficiency"): "share of the peak of matrix products{}",
    ("attention", "efficiency"): "share of the peak of attention{}",
    ("memory", "efficiency"): "share of the memory rate{}",
    ("launch", "seconds"): "time to start a kernel{}",
    ("dispatch", "seconds"): "host's time to launch a kernel{}",
    ("stack", "time_scale"): "what software adds to kernels{}",
    ("stack", "attention_scale"): "what software adds to attention{}",
    ("stack", "tensor_exposed"): "tensor-parallel communication that shows{}",
    ("stack", "data_exposed"): "gradient communication that shows{}",
}
_KEY = re.compile(rf"nodes\.(?:[^\s,]+?)\.(?:{'|'.join(_NODE)})\b|economics\.(?:{'|'.join(_ECONOMICS)})\b")
_ROW = re.compile(r"(\w+) (\w+) of (.+)")


def in_words(name: str) -> str:
    """A key in words: `nodes.DGX-B200.capital_usd` is "price of one DGX-B200"; others unchanged."""
    section, _, rest = name.partition(".")
    node, _, key = rest.rpartition(".")
    if section == "nodes" and key in _NODE:
        return _NODE[key].format(node)
    if section == "economics" and rest in _ECONOMICS:
        return _ECONOMICS[rest]
    row = _ROW.fullmatch(name)
    words = _ROWS.get((row[1], row[2])) if row else None
    if row is None or words is None:
        return name
    return words.format("" if row[3] == "any" else f", {row[3]}")


def keys_in_words(text: str) -> str:
    """`text` with each key of a price file in it, such as `economics.pue`, replaced by words."""
    return _KEY.sub(lambda key: in_words(key[0]), text)
