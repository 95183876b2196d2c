"""Failure rates from a list of incidents: counts over what was exposed, and the doubt that they leave."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median

from tangram_sim.datafiles import csv_cells
from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.reliability.failures import REACH

COLUMNS = ("class", "takes", "count", "detect_s", "repair_h", "gpu")


@dataclass(frozen=True, slots=True)
class Exposure:
    """What the incidents were counted on: nodes (by GPU kind, or of all kinds under ""), and days."""

    nodes: dict[str, float]
    days: float

    def node_days(self, gpu: str) -> float:
        """Node-days of a kind; of all for an empty name. Raises UnknownNameError for others."""
        if gpu and gpu not in self.nodes:
            raise unknown_name("GPU kind of an incident", gpu, [name for name in self.nodes if name])
        return (self.nodes[gpu] if gpu else sum(self.nodes.values())) * self.days


@dataclass(frozen=True, slots=True)
class FittedClass:
    """One class of incidents: its rate per 1,000 node-days with its 90 % interval."""

    name: str
    takes: str
    count: int
    per_1000_node_days: float
    low: float
    high: float
    detect_s: float | None
    repair_h: float
    gpu: str = ""


def fit_incidents(path: Path, exposure: Exposure) -> tuple[FittedClass, ...]:
    """Rates by class of a table `class[,takes][,count][,detect_s][,repair_h][,gpu]`, one incident a row.

    `count` stands for several. A rate is the count over the node-days; its interval is that of a Poisson
    count (chi-squared quantiles, Garwood, Biometrika 28, 1936). Detection and repair are medians of what is
    stated. Raises BadInputError for rows that cannot be read, naming the line.
    """
    header, rows = csv_cells(path)
    if "class" not in header or set(header) - set(COLUMNS):
        raise BadInputError(
            f"{path}: a table of incidents has class[,takes][,count][,detect_s][,repair_h][,gpu]"
        )
    if not exposure.days > 0 or not exposure.nodes or min(exposure.nodes.values()) <= 0:
        raise BadInputError("incidents need nodes and days above 0 on which they were counted")
    groups: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    counts: Counter[tuple[str, str, str]] = Counter()
    for line, cells in rows:
        where, row = f"{path}, line {line}", dict(zip(header, cells, strict=True))
        key = row["class"], row.get("takes") or "node", row.get("gpu", "")
        if not key[0]:
            raise BadInputError(f"{where}: an incident without a class; name it, e.g. gpu")
        if key[1] not in REACH:
            raise BadInputError(f"{where}: {unknown_name('takes', key[1], REACH)}")
        exposure.node_days(key[2])
        amounts = {
            name: _amount(where, name, row.get(name, "")) for name in ("count", "detect_s", "repair_h")
        }
        count = 1.0 if amounts["count"] is None else amounts["count"]
        if count % 1:
            raise BadInputError(f"{where}: count {row['count']!r}: a whole number is wanted")
        counts[key] += int(count)
        groups.setdefault(key, []).append(row)
    return tuple(
        _fitted(key, counts[key], groups[key], exposure)
        for key in sorted(groups, key=lambda key: (-counts[key], key))
        if counts[key]
    )


def _fitted(
    key: tuple[str, str, str], count: int, rows: list[dict[str, str]], exposure: Exposure
) -> FittedClass:
    from scipy.stats import chi2

    name, takes, gpu = key
    scale = 1000.0 / exposure.node_days(gpu)
    low, high = (float(chi2.ppf(at, 2 * n)) / 2 for at, n in ((0.05, count), (0.95, count + 1)))
    detect, repair = (
        [float(row[column]) for row in rows if row.get(column)] for column in ("detect_s", "repair_h")
    )
    return FittedClass(
        name,
        takes,
        count,
        per_1000_node_days=count * scale,
        low=low * scale,
        high=high * scale,
        detect_s=median(detect) if detect else None,
        repair_h=median(repair) if repair else 0.0,
        gpu=gpu,
    )


def _amount(where: str, name: str, text: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise BadInputError(f"{where}: {name} {text!r}: a number, zero or more, is wanted")
    return value


def failures_text(classes: tuple[FittedClass, ...], source: str) -> str:
    """A file for `--failures` with these classes; equal names get what tells them apart behind them."""
    names = Counter(one.name for one in classes)
    lines = [_yaml({"source": source}, flow=False), "classes:"]
    for one in classes:
        apart = (one.gpu, one.takes) if names[one.name] > 1 else ()
        name = ", ".join(part for part in (one.name, *apart) if part)
        rate = float(f"{one.per_1000_node_days:.6g}")
        cells: dict[str, str | float] = {"name": name, "per_1000_node_days": rate, "takes": one.takes}
        cells |= {} if one.detect_s is None else {"detect_s": one.detect_s}
        cells |= {"repair_h": one.repair_h} if one.repair_h else {}
        cells |= {"gpu": one.gpu} if one.gpu else {}
        lines.append(
            f"  - {_yaml(cells, flow=True)}  # {one.count} incidents, 90 % {one.low:.3g} to {one.high:.3g}"
        )
    return "\n".join(lines) + "\n"


def _yaml(cells: Mapping[str, str | float], flow: bool) -> str:
    """A mapping on as few lines as may be, what needs quotes in quotes."""
    import yaml

    found: str = yaml.safe_dump(
        dict(cells), default_flow_style=flow, sort_keys=False, width=inf, allow_unicode=True
    )
    return found.strip()
