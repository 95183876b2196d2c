"""Read slowdowns: files for `--slow`, the short form `n3=1.5`, presets with sources, random draws."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from pathlib import Path
from re import fullmatch
from typing import Any

from tangram_sim.clusters import Cluster
from tangram_sim.datafiles import read_csv, read_text, read_yaml
from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.health import Pause, Resizing, Slowdown
from tangram_sim.studies.slow_documents import SlowDocument, SlowEntry, SlowFile
from tangram_sim.units import DAY_S, HOUR_S

_TRAFFIC = ("used", "by_hour", "trace")


@dataclass(frozen=True, slots=True)
class Preset:
    """How often nodes are slow at some site: each with `node_share`, or one of a job's with `job_share`."""

    factor: float
    what: str
    node_share: float
    job_share: float
    source: str


PRESETS = {
    "megascale": Preset(1.1, "compute", 0.005, 0.0, "MegaScale, 10,000+ GPUs: 0.5 % of machines 10 % slow"),
    "greyhound-compute": Preset(
        1.1179, "compute", 0.0, 0.0153, "GREYHOUND: 1.53 % of 392 one-node probes, 11.79 % longer"
    ),
    "greyhound-network": Preset(
        1.1545, "network", 0.0, 0.393, "GREYHOUND: 39.3 % of 107 four-node probes, 15.45 % longer"
    ),
}


@dataclass(frozen=True, slots=True)
class Slow:
    """Slowdowns, pauses, sequence lengths and resizing of a question."""

    slowdowns: tuple[Slowdown, ...] = ()
    pause: Pause | None = None
    sequences: tuple[tuple[int, ...], ...] = ()  # tokens of the sequences in each microbatch; empty: all full
    resizing: Resizing | None = None  # what slow ranks of tensor-parallel groups may do; None: even shares

    @property
    def is_nothing(self) -> bool:
        """Whether nothing differs from the healthy step: no slowdown, pause or short sequences."""
        nothing_else = self.pause is None and not self.sequences
        return nothing_else and all(slowdown.factor == 1 for slowdown in self.slowdowns)


def read_every_slow(given: Sequence[str], cluster: Cluster) -> Slow:
    """The slowdowns of several `--slow` options together: pairs add up, a file must be the only one.

    Raises `BadInputError` or `UnknownNameError`.
    """
    if len(given) == 1:
        return read_slow(given[0], cluster)
    for text in given:
        if not _are_pairs(text):
            raise BadInputError(
                f"`slow={text}` is a file and stands alone; write all that is slow into it, or give "
                "WHERE=FACTOR pairs only, e.g. n1=1.4 and n3=1.3"
            )
    return Slow(tuple(slowdown for text in given for slowdown in read_slow(text, cluster).slowdowns))


def read_slow(text: str, cluster: Cluster) -> Slow:
    """Slowdowns of one `--slow`: a file, or `WHERE=FACTOR` pairs with commas; draws are made here.

    Raises `BadInputError` or `UnknownNameError`.
    """
    if _are_pairs(text):
        return Slow(tuple(_pair(part) for part in text.split(",") if part.strip()))
    path = Path(text)
    data = read_yaml(path)
    data = data if isinstance(data, dict) else {"slow": data}
    if not isinstance(data.get("slow", []), list) or set(data) - {"slow", "pause", "sequences", "resizing"}:
        raise BadInputError(
            f"{path}: give `slow: [{{where: n3, factor: 1.5}}, ...]`, and beside it what applies of "
            "`pause: {seconds: ...}`, `sequences: FILE`, `resizing: {max_pruned: ...}`"
        )
    slowdowns = [slowdown for entry in data.get("slow", []) for slowdown in _entry(entry, cluster, str(path))]
    stated = SlowFile.read({key: data[key] for key in ("pause", "resizing") if key in data}, str(path))
    lengths = data.get("sequences")
    if lengths is not None and not isinstance(lengths, str):
        raise BadInputError(f"{path}: sequences: give the name of a file with one line per microbatch")
    return Slow(
        tuple(slowdowns),
        stated.pause,
        read_sequences(path.parent / lengths) if lengths else (),
        stated.resizing,
    )


def read_sequences(path: Path) -> tuple[tuple[int, ...], ...]:
    """Tokens of the sequences in each microbatch: one line each, replica by replica; raises
    `BadInputError`.
    """
    found = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        words = line.replace(",", " ").split()
        if not words or words[0].startswith("#"):
            continue
        if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
            raise BadInputError(
                f"{path}: line {number} is {line!r}; give tokens per sequence, e.g. 4096 1200 88"
            )
        found.append(tuple(int(word) for word in words))
    if not found:
        raise BadInputError(f"{path}: no sequence in it; give one line of lengths per microbatch")
    return tuple(found)


def slow_of(document: SlowDocument) -> Slow:
    """The slowdowns that a plan file records."""
    slowdowns = tuple(map(checked, document.slowdowns))
    return Slow(slowdowns, document.pause, tuple(map(tuple, document.sequences)), document.resizing)


def checked(slowdown: Slowdown) -> Slowdown:
    """A slowdown of a file, its factor that of its traffic; raises `BadInputError` for windows that cannot
    be.
    """
    for name, window in (("steps", slowdown.steps), ("seconds", slowdown.seconds)):
        if window is not None and not 0 <= window[0] <= window[1]:
            raise BadInputError(
                f"slow {slowdown.where}: {name} {list(window)}: give the first, then the last"
            )
    if slowdown.seconds and (slowdown.used or fullmatch(r"network|g\d+-g\d+", slowdown.where)):
        raise BadInputError(
            f"slow {slowdown.where}: links and background traffic have no windows of seconds in a step; "
            "give steps"
        )
    return replace(slowdown, factor=1 / (1 - slowdown.mean_used)) if slowdown.used else slowdown


def _are_pairs(text: str) -> bool:
    """Whether `text` is WHERE=FACTOR pairs rather than the name of a file."""
    return "=" in text and not Path(text).exists()


def _pair(part: str) -> Slowdown:
    where, _, factor = part.strip().rpartition("=")
    try:
        return Slowdown(where.strip(), float(factor))
    except ValueError:
        raise BadInputError(f"`slow={part}`: give WHERE=FACTOR, e.g. n3=1.5, or a file") from None


def _entry(entry: Any, cluster: Cluster, where: str) -> list[Slowdown]:
    if isinstance(entry, Mapping) and "preset" in entry:
        return _drawn(dict(entry), cluster, where)
    if not isinstance(entry, Mapping):
        raise BadInputError(f"{where}: {entry!r} is no slowdown; give {{where: n3, factor: 1.5}}")
    given = dict(entry)
    if named := [key for key in _TRAFFIC if key in given]:
        given = _traffic(given, named, where)
    if isinstance(given.get("factor"), Mapping):
        given["factor"] = _lognormal(dict(given["factor"]), where)
    return [checked(SlowEntry.read({"slow": given}, where).slow)]


def _traffic(given: dict[str, Any], named: list[str], where: str) -> dict[str, Any]:
    """Keys of a SlowdownDocument for an entry of background traffic."""
    kept = {"what": "network", **{key: given[key] for key in given if key not in (*_TRAFFIC, "starts_at")}}
    if (
        len(named) > 1
        or kept.keys() & {"factor", "period_s"}
        or kept["what"] != "network"
        or ("starts_at" in given and named != ["by_hour"])
    ):
        raise BadInputError(
            f"{where}: background traffic: give {{where: network, what: network}} and one of `used: 0.3`, "
            '`by_hour: [24 shares]` (with `starts_at: "09:00"` if need be) and `trace: FILE.csv`; no factor'
        )
    if named != ["used"] and kept.keys() & {"steps", "seconds"}:
        raise BadInputError(f"{where}: background traffic: {named[0]} says when; leave out steps and seconds")
    stated = given[named[0]]
    pieces, period_s = [(0.0, stated)], 0.0
    if named == ["by_hour"]:
        pieces, period_s = _hours(stated, given.get("starts_at", "00:00"), where), DAY_S
    elif named == ["trace"]:
        pieces = _trace(Path(where).parent / str(stated))
        period_s = pieces.pop()[0]
    return {**kept, "factor": 1.0, "used": pieces, "period_s": period_s}  # its factor follows from `used`


def _hours(shares: Any, starts_at: Any, where: str) -> list[tuple[float, Any]]:
    """(seconds, share) of background traffic by hour, for a run that starts at `starts_at`."""
    if not isinstance(shares, list) or len(shares) != 24:
        count = len(shares) if isinstance(shares, list) else 1
        raise BadInputError(f"{where}: by_hour: {count} shares; give 24, one for every hour from 00:00 on")
    clock = fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)", str(starts_at))
    if clock is None:
        raise BadInputError(
            f'{where}: starts_at: {starts_at!r}: give hours and minutes in quotes, e.g. "09:00"'
        )
    hour, late_s = int(clock[1]), 60.0 * int(clock[2])
    return [(max(HOUR_S * n - late_s, 0.0), shares[(hour + n) % 24]) for n in range(25 if late_s else 24)]


def _trace(path: Path) -> list[tuple[float, float]]:
    """Background traffic of a table: a share holds until the next row's second, the last row is the end."""
    try:
        rows = [(float(row["seconds"]), float(row["share"])) for row in read_csv(path)]
    except (KeyError, TypeError, ValueError):
        rows = []
    if len(rows) < 2:
        raise BadInputError(
            f"{path}: background traffic: give the columns seconds,share with numbers, two rows at least, "
            "e.g. 0,0.3 and 3600,0: the last row is the end"
        )
    return rows


def _lognormal(given: dict[str, Any], where: str) -> float:
    """A slowdown factor drawn from {lognormal: {median: 1.3, sigma: 0.2, seed: 1}}."""
    law = given.get("lognormal")
    try:
        if (
            set(given) != {"lognormal"}
            or not isinstance(law, Mapping)
            or set(law) - {"median", "sigma", "seed"}
        ):
            raise ValueError
        median, sigma, seed = float(law["median"]), float(law["sigma"]), int(law.get("seed", 0))
        if not (median > 0 and 0 <= sigma < 10):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise BadInputError(
            f"{where}: factor {given}: give a number or {{lognormal: {{median: 1.3, sigma: 0.2, seed: 1}}}}"
        ) from None
    return median * exp(sigma * random.Random(seed).gauss(0.0, 1.0))


def _drawn(given: dict[str, Any], cluster: Cluster, where: str) -> list[Slowdown]:
    """Slow nodes drawn by a preset, {preset: megascale, seed: 1}."""
    name, seed = given.get("preset"), given.get("seed", 0)
    if name not in PRESETS:
        raise unknown_name("preset of slowness", str(name), PRESETS)
    if set(given) - {"preset", "seed"} or not isinstance(seed, int):
        raise BadInputError(f"{where}: {given}: give {{preset: {name}, seed: 1}}")
    preset, draw = PRESETS[name], random.Random(seed)
    nodes = range(len(cluster.node_group))
    slow = [node for node in nodes if draw.random() < preset.node_share]
    if draw.random() < preset.job_share:
        slow.append(draw.choice(nodes))
    return [Slowdown(f"n{node}", preset.factor, preset.what) for node in sorted(set(slow))]
