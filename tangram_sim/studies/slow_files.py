"""Reading what is slow: files of `--slow`, the short form `n3=1.5`, presets with sources, draws."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tangram_sim.clusters import Cluster
from tangram_sim.datafiles import read_text, read_yaml
from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.health import Pause, Resizing, Slowdown
from tangram_sim.hwdb.model_section import first_problem
from tangram_sim.studies.slow_documents import PauseDocument, ResizingDocument, SlowDocument, SlowdownDocument


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
    """What is slow, and how ranks pause."""

    slowdowns: tuple[Slowdown, ...] = ()
    pause: Pause | None = None
    sequences: tuple[tuple[int, ...], ...] = ()  # tokens of the sequences in each microbatch; empty: all full
    resizing: Resizing | None = None  # what slow ranks of tensor-parallel groups may do; None: even shares

    @property
    def is_nothing(self) -> bool:
        """Whether everything runs as priced."""
        nothing_else = self.pause is None and not self.sequences
        return nothing_else and all(slowdown.factor == 1 for slowdown in self.slowdowns)


def read_every_slow(given: Sequence[str], cluster: Cluster) -> Slow:
    """What several `--slow` say together: pairs add up, a file stands alone.

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
    """What `--slow` says: a file, or `WHERE=FACTOR` pairs separated by commas; draws are made here.

    Raises `BadInputError` or `UnknownNameError`.
    """
    if _are_pairs(text):
        return Slow(tuple(_pair(part) for part in text.split(",") if part.strip()))
    path = Path(text)
    data = read_yaml(path)
    listed = data.get("slow", []) if isinstance(data, dict) else data
    if not isinstance(listed, list) or (
        isinstance(data, dict) and set(data) - {"slow", "pause", "sequences", "resizing"}
    ):
        raise BadInputError(
            f"{path}: give `slow: [{{where: n3, factor: 1.5}}, ...]`, and beside it what applies of "
            "`pause: {seconds: ...}`, `sequences: FILE`, `resizing: {max_pruned: ...}`"
        )
    slowdowns = [slowdown for entry in listed for slowdown in _entry(entry, cluster, str(path))]
    given = data.get("pause") if isinstance(data, dict) else None
    try:
        pause = pause_of(PauseDocument.model_validate(given)) if given is not None else None
    except ValidationError as error:
        raise BadInputError(f"{path}: pause: {first_problem(error)}") from None
    lengths = data.get("sequences") if isinstance(data, dict) else None
    if lengths is not None and not isinstance(lengths, str):
        raise BadInputError(f"{path}: sequences: give the name of a file with one line per microbatch")
    sequences = read_sequences(path.parent / lengths) if lengths else ()
    return Slow(tuple(slowdowns), pause, sequences, _resizing(data, path))


def _resizing(data: Any, path: Path) -> Resizing | None:
    given = data.get("resizing") if isinstance(data, dict) else None
    try:
        return resizing_of(ResizingDocument.model_validate(given)) if given is not None else None
    except ValidationError as error:
        raise BadInputError(f"{path}: resizing: {first_problem(error)}") from None


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
    """What a plan file says was slow."""
    pause = pause_of(document.pause) if document.pause is not None else None
    sequences = tuple(tuple(held) for held in document.sequences)
    resizing = resizing_of(document.resizing) if document.resizing is not None else None
    return Slow(tuple(slowdown_of(slowdown) for slowdown in document.slowdowns), pause, sequences, resizing)


def slowdown_of(document: SlowdownDocument) -> Slowdown:
    """The noun of a document; raises `BadInputError` for windows that run backward."""
    for name, window in (("steps", document.steps), ("seconds", document.seconds)):
        if window is not None and not 0 <= window[0] <= window[1]:
            raise BadInputError(
                f"slow {document.where}: {name} {list(window)}: give the first, then the last"
            )
    return Slowdown(
        document.where, document.factor, document.what, document.steps or (), document.seconds or ()
    )


def resizing_of(document: ResizingDocument) -> Resizing:
    """The noun of a document."""
    return Resizing(document.max_pruned, document.cap, document.method, document.shares == "published")


def resizing_document(wanted: Resizing) -> ResizingDocument:
    """The document of a noun."""
    return ResizingDocument.model_validate(
        {
            "method": wanted.method,
            "shares": "published" if wanted.published_shares else "best",
            "max_pruned": wanted.max_pruned,
            "cap": wanted.cap,
        }
    )


def pause_of(document: PauseDocument) -> Pause:
    """The noun of a document."""
    return Pause(document.seconds, document.probability, document.every_steps)


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
    if isinstance(given.get("factor"), Mapping):
        given["factor"] = _lognormal(dict(given["factor"]), where)
    try:
        return [slowdown_of(SlowdownDocument.model_validate(given))]
    except ValidationError as error:
        raise BadInputError(f"{where}: {first_problem(error)}") from None


def _lognormal(given: dict[str, Any], where: str) -> float:
    """A drawn factor: {lognormal: {median: 1.3, sigma: 0.2, seed: 1}}."""
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
    """Nodes drawn as a preset says: {preset: megascale, seed: 1}."""
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
