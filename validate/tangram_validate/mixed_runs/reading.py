"""Rows of published mixed runs as plans, with what had to be assumed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from tangram_sim.clusters import Cluster
from tangram_sim.hwdb import Hwdb
from tangram_sim.layouts import Layout
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan, Share, pipeline_of_shares
from tangram_validate.mixed_runs.hardware import cluster_of, entries
from tangram_validate.mixed_runs.seats import block_bounds, layers_planned, replicas_of, seated
from tangram_validate.published import defaults, workload
from tangram_validate.published.cells import CellError, Cells
from tangram_validate.published.habits import stack_under
from tangram_validate.published.stacks import stack_of
from tangram_validate.published.table import Problem, read_row, read_rows

HARD = ("cluster", "layers", "hidden", "seq_len", "gbs", "tp", "pp", "dp", "stage_layers", "stage_placement")
GPU_NAMES = {"sailor": {"RTX-2080": "RTX-2080Ti"}}  # what a source calls a kind -> what it is
MOST_PASSES = 200_000  # of one step that are still played


@dataclass(frozen=True, slots=True)
class MixedRun:
    """One row, ready to be predicted. Measured and predicted by the source: 0.0 where not stated."""

    id: str
    source_id: str
    workload: str  # runs of one workload are ranked against each other
    cluster: str
    software: defaults.Software
    plan: Plan
    measured_s: float
    source_s: float
    assumed: tuple[str, ...]


def read_table(path: Path) -> list[dict[str, str]]:
    """Rows of a table of mixed runs, as text. Raises BadInputError for another file."""
    hints = {"gpu": "; `tangram validate published` reads runs on one GPU kind"}
    return read_rows(path, HARD, "runs on mixed clusters", telling=("cluster",), hints=hints)


def read_run(row: Mapping[str, str], hwdb: Hwdb, number: int = 1) -> MixedRun | Problem:
    """One row as a plan, or the reason why it is none; `number` names it where its id is blank."""
    return read_row(row, number, lambda name, cells: _run(name, cells, hwdb))


def _run(name: str, cells: Cells, hwdb: Hwdb) -> MixedRun:
    tp, pp, dp, gbs, seq = cells.needed("tp", "pp", "dp", "gbs", "seq_len")
    run_by = defaults.software(cells.text("framework"), cells.text("date"))
    cells = _renamed(cells, stack_of(run_by))
    cluster = cluster_of(cells, hwdb, stack_of(run_by))
    if tp * pp * dp > cluster.gpus * 8:
        raise CellError(f"tp {tp} x pp {pp} x dp {dp} is far more than the {cluster.gpus} GPUs")
    model = workload.model(cells, run_by, tp, seq)
    per_rank = cells.count("mbs")
    if per_rank is None:
        per_rank = workload.per_rank(cells, gbs, dp)
    microbatches = -(-gbs // (per_rank * dp))
    if gbs % (per_rank * dp):
        played = microbatches * per_rank * dp
        cells.assume(
            "gbs", f"{played:g}", f"{gbs} is no multiple of mbs {per_rank} x dp {dp}: the next that is"
        )
        gbs = played
    if microbatches * pp > MOST_PASSES:
        raise CellError(f"{microbatches * pp:,} passes in one step are too many to play")
    job = replace(_job(cells, run_by, cluster, gbs, seq), stack=stack_under(run_by, stack_of(run_by)))
    recompute, layout = _recompute(cells, run_by, model.layers, pp), workload.zero_stage(cells, run_by, pp)
    placement = cells.text("stage_placement")
    bounds = block_bounds(cells.text("stage_layers") or layers_planned(placement), model.layers, pp)
    kinds = list(dict.fromkeys(str(group.node.gpu.name) for group in cluster.groups))
    stated = _named(cells)
    replicas = replicas_of(placement, [*stated, *kinds], pp, dp, tp, hwdb)
    seats = seated(replicas, cluster)
    group_of = [group for group in cluster.groups for _ in range(group.count * group.node.gpus)]
    shares = []
    for stage in seats:
        parts = []
        for (island, degree), same in groupby(
            stage, key=lambda ranks: (_islands(ranks, group_of), len(ranks))
        ):
            members = list(same)
            parts.append(
                Share(
                    island,
                    tuple(rank for ranks in members for rank in ranks),
                    per_rank * len(members),
                    Layout(degree, len(members), zero_stage=layout, recompute=recompute),
                )
            )
        shares.append(parts)
    cuts = [0, *(stop for _, stop in bounds)]
    plan = Plan(model, cluster, job, (pipeline_of_shares(microbatches, cuts, shares),))
    words = (cells.text("source_id"), cells.text("model") or model.name, str(gbs), str(seq))
    return MixedRun(
        name,
        cells.text("source_id"),
        " ".join(words),
        cells.text("cluster"),
        run_by,
        plan,
        cells.number("iter_time_s") or 0.0,
        cells.number("predicted_by_source_s") or 0.0,
        tuple(cells.assumed),
    )


def _renamed(cells: Cells, stack: str) -> Cells:
    """The row with GPU kinds as the database calls them where a source gives them another one's name."""
    row = dict(cells.row)
    for theirs, ours in GPU_NAMES.get(stack, {}).items():
        spelled = theirs.replace("-", "[-_ ]?")
        word = re.compile(rf"\b{spelled}(?![\w-]| ?Ti\b)", re.IGNORECASE)
        for column in ("cluster", "stage_placement", "intra_link", "inter_link"):
            row[column] = word.sub(ours, cells.text(column))
        if row["cluster"] != cells.text("cluster"):
            cells.assume(theirs, ours, "what the source profiled under that name is as fast as the latter")
    return Cells(row, cells.assumed)


def _named(cells: Cells) -> list[str]:
    """GPU kinds as the cluster cell writes them."""
    return list(dict.fromkeys(str(group.get("gpu", "")) for group in entries(cells.text("cluster"))))


def _islands(ranks: Sequence[int], group_of: Sequence[object]) -> str:
    return "+".join(dict.fromkeys(str(getattr(group_of[rank], "name", "")) for rank in ranks))


def _job(cells: Cells, run_by: defaults.Software, cluster: Cluster, gbs: int, seq: int) -> Job:
    """The job; precision unstated on a mixed cluster is the one that all of its GPUs have."""
    weakest = min(
        (group.node.gpu for group in cluster.groups), key=lambda gpu: gpu.peak_flop_per_s("bf16") > 0
    )
    alone = Cluster(cluster.name, tuple(g for g in cluster.groups if g.node.gpu is weakest))
    schedule = "gpipe" if "gpipe" in cells.text("schedule") else "1f1b"
    return workload.job(cells, run_by, alone, gbs, seq, schedule)


def _recompute(cells: Cells, run_by: defaults.Software, layers: int, pp: int) -> str:
    """Recomputation as stated, else none: activations are checkpointed only on request."""
    if not cells.text("recompute"):
        cells.assume("recompute", "none", f"{run_by.family} checkpoints activations only on request")
        return "none"
    return workload.recompute(cells, run_by, layers, pp).kind
