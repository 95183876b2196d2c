"""Measured runs of layers placed on unlike nodes (Helix's tables), held against the same runs played.

A run's table (`section, kind, model, load, method, part, decode_tok_s, ...`) needs three beside it: the
layers that each node held, a log of requests, and milliseconds a layer by kind of GPU.
"""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tangram_sim.datafiles import read_csv
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.hwdb import load_model
from tangram_sim.models import Model
from tangram_sim.serving.build import precision_of
from tangram_sim.units import GIGA
from tangram_validate.serving.placed_layers import (
    HopLink,
    LayerNode,
    NodeLayerTimes,
    PlacedOutcome,
    PlacedRequest,
    play_placed,
)
from tangram_validate.serving.runs import PLACED, RefusedRun, ServedRun

NEEDED = ("kind", "method", "part", "load", "decode_tok_s", "decode_mean_s")
BESIDE = ("helix_placements.csv", "helix_requests.csv", "helix_layer_profiles.csv")
Row = dict[str, str]
# Names of the tables' models in their profiles of layers.
PROFILED = {"llama30b": "llama1_30b", "llama70b": "llama2_70b"}
# Nodes of a cloud's region: the bandwidth that the paper states (Mei et al., ASPLOS 2025); latency assumed.
LINK_BYTES_PER_S, LATENCY_S = 10 * GIGA / 8, 1e-3
# What the prototype's host takes for a layer: A100 nodes decode no faster, whatever their GPUs could. Chosen
# such that the online run on A100 alone takes its 0.138 s a token; on L4 and T4 GPUs take longer.
HOST_LAYER_S = 2.1e-3
# What was counted: from the end of the warm-up to the end of the log.
OFFLINE_END_S, ONLINE_END_S = 300.0, 330.0
MOST_CLIENTS = 10_000


@dataclass(frozen=True)
class PlacedRun:
    """A measured run: its nodes, its requests, and how many were in flight (0: they came by themselves)."""

    model: Model
    method: str  # by which layers were placed
    load: str
    nodes: tuple[LayerNode, ...]
    gpus: tuple[str, ...]  # of the nodes
    requests: tuple[PlacedRequest, ...]
    clients: int
    warm_s: float

    def played(self) -> PlacedOutcome:
        """The run played on the nodes' profiles."""
        return play_placed(
            self.nodes,
            self.model.layers,
            HopLink(LATENCY_S, LINK_BYTES_PER_S, 2.0 * self.model.hidden),
            self.requests,
            clients=self.clients,
            warm_s=self.warm_s,
            end_s=OFFLINE_END_S if self.clients else ONLINE_END_S,
        )


def is_placed_runs(columns: set[str]) -> bool:
    """Whether a table with these columns has runs of placed layers."""
    return set(NEEDED) <= columns


class PlacedTables:
    """The three tables beside a table of runs. Raises BadInputError where one is not there."""

    def __init__(self, runs: Path) -> None:
        missing = [name for name in BESIDE if not (runs.parent / name).is_file()]
        if missing:
            raise BadInputError(
                f"{runs}: runs of placed layers need {', '.join(missing)} in the same folder: the layers "
                "that each node held, the requests, and milliseconds a layer"
            )
        placements, requests, profiles = (read_csv(runs.parent / name) for name in BESIDE)
        self._placements, self._profiles = placements, profiles
        self._logs: dict[tuple[str, ...], list[Row]] = defaultdict(list)
        for row in requests:
            self._logs[row["model"], row["method"], row["load"], row["part"]].append(row)

    def run(self, row: Row) -> PlacedRun:
        """The run of a row. Raises BadInputError where the tables do not say enough."""
        name, method, load, part = row["model"], row["method"], row["load"], row["part"]
        held = [
            placement
            for placement in self._placements
            if (placement["model"], placement["method"], placement["part"]) == (name, method, part)
        ]
        if not held:
            raise BadInputError("the tables do not say which layers its nodes held")
        nodes = tuple(
            LayerNode(
                item["node"], int(item["first_layer"]), int(item["end_layer"]), self._times(name, item["gpu"])
            )
            for item in held
        )
        log = self._logs.get((name, method, load, part), [])
        if load == "online" and not log:
            raise BadInputError("no log says when its requests came")
        return PlacedRun(
            model=load_model(name),
            method=method,
            load=load,
            nodes=nodes,
            gpus=tuple(item["gpu"] for item in held),
            requests=_requests(log if load == "online" else self._whole(name)),
            clients=self._in_flight(row, log) if load == "offline" else 0,
            warm_s=float(row["warmup_s"] or 60.0),
        )

    def _times(self, model: str, gpu: str) -> NodeLayerTimes:
        of: dict[str, list[tuple[float, float]]] = {"prompt": [], "decode": []}
        for profile in self._profiles:
            if profile["model"] == PROFILED.get(model, model) and profile["machine"] == gpu.lower():
                of[profile["phase"]].append(
                    (float(profile["tokens_in_batch"]), float(profile["ms_per_layer"]) / 1e3)
                )
        if not all(of.values()):
            raise BadInputError(f"no profile of a layer of {model} on {gpu}")
        (prompt, decode) = (np.array(sorted(pairs)).T for pairs in of.values())
        return NodeLayerTimes(prompt[0], prompt[1], decode[0], decode[1], HOST_LAYER_S)

    def _whole(self, model: str) -> list[Row]:
        """The log with the longest outputs: logs were cut after five minutes, the fastest nodes' least."""
        logs = [log for key, log in self._logs.items() if key[0] == model]
        if not logs:
            raise BadInputError(f"no log of requests of {model}")
        return max(logs, key=lambda log: float(np.mean([float(item["output_tokens_seen"]) for item in log])))

    def _in_flight(self, row: Row, log: list[Row]) -> int:
        """Requests in flight after the warm-up: the log's median, or where there is none by Little's law."""
        if log:
            spans = np.array([(float(item["sent_s"]), float(item["last_token_s"])) for item in log])
            moments = np.arange(float(row["warmup_s"] or 60.0), OFFLINE_END_S - 10.0, 10.0)
            counts = [int(((spans[:, 0] < at) & (spans[:, 1] > at)).sum()) for at in moments]
            found = int(np.median(counts))
        else:
            found = round(float(row["decode_tok_s"]) * float(row["decode_mean_s"]))
        if not 0 < found <= MOST_CLIENTS:
            raise BadInputError("neither its log nor its rates say how many requests were in flight")
        return found


def read_placed_runs(path: Path, rows: list[Row]) -> list[ServedRun | RefusedRun]:
    """Every row of a table of placed layers as a run, or why it is none. Raises BadInputError."""
    tables = PlacedTables(path)
    found: list[ServedRun | RefusedRun] = []
    for line, row in enumerate(rows, start=2):
        try:
            if row["kind"] != "measured":
                raise BadInputError("a simulation, not a measurement")
            run = tables.run(row)
            measured = {
                "tpot": float(row["decode_mean_s"] or 0.0),
                "ttft": float(row.get("prompt_mean_s", "") or 0.0),
                "output_tok_s": float(row["decode_tok_s"] or 0.0),
            }
            found.append(_served(line, row, run, measured))
        except (TangramError, ValueError) as error:
            found.append(RefusedRun(line, str(error)))
    return found


def _served(line: int, row: Row, run: PlacedRun, measured: dict[str, float]) -> ServedRun:
    return ServedRun(
        line=line,
        gpu=" + ".join(dict.fromkeys(run.gpus)),
        model=run.model,
        precision=precision_of("fp16", run.model),
        engine=run.method,
        version="",
        tp=1,
        pp=len(run.nodes),
        attention_dp=1,
        ep=1,
        load=PLACED,
        clients=float(run.clients),
        rate=0.0,
        isl=float(np.mean([request.prompt for request in run.requests])),
        osl=float(np.mean([request.output for request in run.requests])),
        cached=0.0,
        source=row.get("source", "")[:60],
        measured=tuple((name, value) for name, value in measured.items() if value > 0),
        placed=run,
    )


def _requests(log: list[Row]) -> tuple[PlacedRequest, ...]:
    return tuple(
        PlacedRequest(
            float(item["sent_s"]), int(item["prompt_tokens"]), max(1, int(item["output_tokens_seen"]))
        )
        for item in sorted(log, key=lambda item: float(item["sent_s"]))
    )
