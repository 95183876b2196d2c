"""Reads the recorded runs of peer planners: their clusters and plans, and the profiles they planned with."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log2
from pathlib import Path

from tangram_sim.planners.coarse.coarse_plan import CoarsePlan, ReplicaGroup, shared_out, tables_of
from tangram_sim.planners.coarse.profile import Kind, LayerTable, Profile

GPU_NAMES = {"A100-40": "A100-SXM4-40GB", "V100-16": "V100-SXM2-16GB", "GH-96": "GH200-96GB"}
MEMORY_BYTES = {"A100-40": 40e9, "V100-16": 16e9, "GH-96": 96e9}
MODELS = {"OPT-350": "opt-350m-sailor", "GPT-Neo-2.7": "gpt-neo-2.7b-sailor"}
PER_NODE = 4
STATE_BYTES = 24.0  # per parameter, as Sailor counts
CONSTANT_BYTES = 2e9  # of a GPU beside state and activations
GRADIENT_BYTES = 4.0  # with them the recorded estimates of unmixed plans come out


@dataclass(frozen=True)
class Run:
    """One recorded planning run that returned a plan."""

    planner: str
    model: str
    cluster: tuple[tuple[str, int], ...]  # (GPU kind, GPUs)
    global_batch: int
    plan: str
    objective_s: float  # by the planner's own simulator
    status: str

    @property
    def gpus(self) -> int:
        """GPUs of the cluster."""
        return sum(count for _, count in self.cluster)

    @property
    def cluster_name(self) -> str:
        """The shipped cluster of this run: `sailor-a8-v8`."""
        short = {"A100-40": "a", "V100-16": "v", "GH-96": "gh"}
        return "-".join(("sailor", *(f"{short[kind]}{count}" for kind, count in self.cluster)))


def runs(folder: Path) -> list[Run]:
    """All recorded runs that returned a plan."""
    found = []
    with (folder / "peer_planning_runs.csv").open() as file:
        for row in csv.DictReader(file):
            if not row["plan"]:
                continue
            cluster = tuple(
                (kind, int(count)) for kind, count in (part.split(":") for part in row["cluster"].split(","))
            )
            objective = float(row["planner_est_iter_s"] or row["sailor_sim_iter_s"])
            # What the stock planner misjudged is replaced by its best plan without that defect, where known.
            plan = row["clean_plan"] or row["plan"]
            found.append(
                Run(row["planner"], row["model"], cluster, int(row["gbs"]), plan, objective, row["status"])
            )
    return found


class RecordedProfile(Profile):
    """Layers and links as the peers measured them (Sailor's repository, MIT), 4 GPUs per node."""

    def __init__(self, folder: Path, model: str, cluster: tuple[tuple[str, int], ...]) -> None:
        first, kinds = 0, []
        for name, gpus in cluster:
            kinds.append(Kind(name, name, gpus // PER_NODE, PER_NODE, tuple(range(first, first + gpus))))
            first += gpus
        self.kinds = tuple(kinds)
        self._layers = _by_key(folder / "layer_profiles_sailor.csv", model)
        self._sizes = _sizes(folder / "model_memory_sailor.csv", model)
        self._rates = _rates(folder / "p2p_bandwidth_fits_sailor.csv")
        self.atoms = next(iter(self._sizes.values()))[0]
        self.gradient_bytes = tuple(GRADIENT_BYTES * count for count in self._per_atom(1, "params_floats"))
        self.boundary_bytes = 2.0 * self._per_atom(1, "act_output_floats")[0]
        self._tables: dict[tuple[int, int, int], LayerTable | None] = {}

    def _per_atom(self, tp: int, column: str) -> list[float]:
        atoms, by_column = self._sizes[tp]
        first, block, last = by_column[column]
        return [first, *[block] * (atoms - 2), last]

    def tps(self, kind: int) -> tuple[int, ...]:
        """What fits a node."""
        return (1, 2, 4)

    def layers(self, kind: int, tp: int, sequences: int) -> LayerTable | None:
        """A row of the profiles; sequences that were not measured are a hole."""
        key = (kind, tp, sequences)
        if key not in self._tables:
            row = self._layers.get((self.kinds[kind].name, sequences, tp))
            self._tables[key] = (
                None if row is None or tp not in self._sizes else self._table(kind, tp, sequences, row)
            )
        return self._tables[key]

    def _table(self, kind: int, tp: int, sequences: int, row: dict[str, str]) -> LayerTable:
        def of(direction: str) -> tuple[float, ...]:
            ends = float(row[f"embed_{direction}_s"]), float(row[f"head_{direction}_s"])
            return (ends[0], *[float(row[f"block_{direction}_s"])] * (self.atoms - 2), ends[1])

        return LayerTable(
            of("fwd"),
            of("bwd"),
            of("upd"),
            tuple(STATE_BYTES * count for count in self._per_atom(tp, "params_floats")),
            tuple(sequences * count for count in self._activations(tp)),
            MEMORY_BYTES[self.kinds[kind].name] - CONSTANT_BYTES,
        )

    def _activations(self, tp: int) -> list[float]:
        # Elements of two bytes for some tensors and of one for others; Sailor takes the column as bytes.
        return self._per_atom(tp, "act_mem_floats")

    def rate(self, a: int, b: int, size: float, gpus: int) -> float:
        """The fit between so many GPUs of two nodes of one zone."""
        return self._rate("inter", self.kinds[a].name, self.kinds[b].name, gpus, size)

    def inside_rate(self, kind: int, size: float) -> float:
        """The fit inside a 4-GPU node."""
        return self._rate("intra", self.kinds[kind].name, self.kinds[kind].name, PER_NODE, size)

    def _rate(self, where: str, a: str, b: str, gpus: int, size: float) -> float:
        curve = self._rates.get((where, a, b, gpus)) or self._rates[where, b, a, gpus]
        x = log2(max(size / 1e6, 1e-3))
        return min(max((curve[0] * x + curve[1]) * x + curve[2], 0.05) * 1e9, curve[3])


def _by_key(path: Path, model: str) -> dict[tuple[str, int, int], dict[str, str]]:
    with path.open() as file:
        return {
            (row["gpu"], int(row["mbs"]), int(row["tp"])): row
            for row in csv.DictReader(file)
            if row["model"] == model
        }


def _sizes(path: Path, model: str) -> dict[int, tuple[int, dict[str, tuple[float, float, float]]]]:
    """(atoms, (embedding, block, head) by column) by tp."""
    rows: dict[int, list[dict[str, str]]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            if row["model"] == model:
                rows.setdefault(int(row["tp"]), []).append(row)
    found = {}
    for tp, given in rows.items():
        given.sort(key=lambda row: int(row["layer_idx"]))
        by_column = {
            column: (float(given[0][column]), float(given[1][column]), float(given[2][column]))
            for column in ("params_floats", "act_output_floats", "act_mem_floats")
        }
        found[tp] = int(given[0]["n_layers"]), by_column
    return found


def _rates(path: Path) -> dict[tuple[str, str, str, int], tuple[float, float, float, float]]:
    """Fits between as many GPUs of two nodes in one zone, and inside nodes: c2, c1, c0, largest bytes/s."""
    found = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            one_zone = row["zone_a"] == row["zone_b"] and row["zone_a"] in ("", "us-central1-a")
            if one_zone and row["n_a"] == row["n_b"]:
                curve = float(row["c2"]), float(row["c1"]), float(row["c0"]), float(row["max_bw_Bps"])
                found[row["kind"], row["gpu_a"], row["gpu_b"], int(row["n_a"])] = curve
    return found


_STAGE = re.compile(r"L(\d+)\[([^\]]*)\]")


def outline_of(run: Run, profile: Profile, share: bool, names: Sequence[str] = ()) -> CoarsePlan:
    """A recorded plan as an outline; `share` splits data by speed in mixed stages (Metis).

    `names` are the recorded names of the profile's kinds, where it has others.
    """
    match = re.match(r"mbs=(\d+) pp=\d+ dp=\[([\d, ]+)\]", run.plan)
    if match is None:
        raise ValueError(f"{run.plan!r} is not in the notation of recorded plans")
    size, first_dp = int(match[1]), int(match[2].split(",")[0])
    microbatch = size * first_dp
    names = names or [kind.name for kind in profile.kinds]
    stages, lengths = list[tuple[ReplicaGroup, ...]](), list[int]()
    for length, teams in _STAGE.findall(run.plan):
        given = list(_teams(teams, names))
        replicas = sum(count for _, count, _ in given)
        found = shared_out(given, microbatch, profile) if share and len(given) > 1 else None
        if found is None or tables_of(found, profile) is None:  # shares that were not profiled
            found = tuple(
                ReplicaGroup(kind, count, tp, microbatch * count // replicas) for kind, count, tp in given
            )
        stages.append(found)
        lengths.append(int(length))
    microbatches = -(-run.global_batch // microbatch)
    return CoarsePlan(microbatches, microbatch, (0, *accumulate(lengths)), tuple(stages))


def _teams(text: str, names: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    for part in text.split(","):
        count, name, tp = re.fullmatch(r"(\d+)x(.+)/tp(\d+)", part).groups()  # type: ignore[union-attr]  # recorded
        yield names.index(name), int(count), int(tp)
