"""Rows of published mixed runs as plans, with what had to be assumed."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from tangram_sim.clusters import Cluster
from tangram_sim.datafiles import read_text
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.jobs import Job
from tangram_sim.layouts import Layout
from tangram_sim.plans import Plan, Share, pipeline_of_shares
from tangram_sim.studies.mixed_runs.habits import habits_of, stack_under
from tangram_sim.studies.mixed_runs.hardware import cluster_of
from tangram_sim.studies.mixed_runs.seats import block_bounds, replicas_of, seated
from tangram_sim.studies.published import defaults, workload
from tangram_sim.studies.published.cells import CellError, Cells
from tangram_sim.studies.published.reading import WIDTH, Problem
from tangram_sim.studies.published.stacks import stack_of

HARD = ("cluster", "layers", "hidden", "seq_len", "gbs", "tp", "pp", "dp", "stage_layers", "stage_placement")
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
    """Rows of the file as text; a row of the wrong width is kept and marked.

    Raises BadInputError for a file that is no CSV or has hardly any of the columns of mixed runs.
    """
    text = read_text(path).removeprefix("\ufeff")
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        header = [cell.strip() for cell in next(reader, [])]
        lines = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except csv.Error as error:
        raise BadInputError(f"{path}, line {reader.line_num}: not CSV: {error}") from None
    known = [column for column in HARD if column in header]
    if len(known) * 2 < len(HARD) or "cluster" not in header:
        hint = "; `tangram validate published` reads runs on one GPU kind" if "gpu" in header else ""
        raise BadInputError(
            f"{path}: not a table of runs on mixed clusters: its header has {', '.join(known) or 'none'} of "
            f"the columns {', '.join(HARD)}{hint}"
        )
    rows = []
    for line, cells in lines:
        row = dict(zip(header, cells, strict=False))
        if len(cells) != len(header):
            row[WIDTH] = f"line {line} has {len(cells)} cells where the header has {len(header)} columns"
        rows.append(row)
    return rows


def read_run(row: Mapping[str, str], hwdb: Hwdb, number: int = 1) -> MixedRun | Problem:
    """One row as a plan, or the reason why it is none; `number` names it where its id is blank."""
    cells = Cells(row)
    name = cells.text("id") or f"row {number}"
    try:
        return _run(name, cells, hwdb)
    except (CellError, TangramError) as error:
        return Problem(name, cells.text("source_id"), str(error))


def _run(name: str, cells: Cells, hwdb: Hwdb) -> MixedRun:
    if cells.text(WIDTH):
        raise CellError(cells.text(WIDTH))
    tp, pp, dp, gbs, seq = cells.needed("tp", "pp", "dp", "gbs", "seq_len")
    run_by = defaults.software(cells.text("framework"), cells.text("date"))
    cluster = cluster_of(cells, hwdb)
    if tp * pp * dp > cluster.gpus * 8:
        raise CellError(f"tp {tp} x pp {pp} x dp {dp} is far more than the {cluster.gpus} GPUs")
    model = workload.model(cells, run_by, tp, seq)
    per_rank = cells.count("mbs")
    if per_rank is None:
        per_rank = workload.per_rank(cells, gbs, dp)
    if gbs % (per_rank * dp):
        raise CellError(f"gbs {gbs} is no multiple of mbs {per_rank} x dp {dp}")
    microbatches = gbs // (per_rank * dp)
    if microbatches * pp > MOST_PASSES:
        raise CellError(f"{microbatches * pp:,} passes in one step are too many to play")
    job = replace(
        _job(cells, run_by, cluster, gbs, seq), stack=stack_under(habits_of(run_by), stack_of(run_by))
    )
    recompute, layout = _recompute(cells, run_by), workload.zero_stage(cells, run_by)
    bounds = block_bounds(cells.text("stage_layers"), model.layers, pp)
    kinds = list(dict.fromkeys(str(group.node.gpu.name) for group in cluster.groups))
    stated = _named(cells)
    replicas = replicas_of(cells.text("stage_placement"), [*stated, *kinds], pp, dp, tp, hwdb)
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


def _named(cells: Cells) -> list[str]:
    """GPU kinds as the cluster cell writes them."""
    return list(dict.fromkeys(str(group["gpu"]) for group in json.loads(cells.text("cluster"))))


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


def _recompute(cells: Cells, run_by: defaults.Software) -> str:
    """Recomputation as stated, else none: activations are checkpointed only on request."""
    if not cells.text("recompute"):
        cells.assume("recompute", "none", f"{run_by.family} checkpoints activations only on request")
        return "none"
    return workload.recompute(cells)[0]
