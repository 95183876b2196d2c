"""Checks that a plan file can be simulated again: consistent decisions, hardware as `hwdb` now states it."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from tangram_sim.clusters import Cluster
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb, Row
from tangram_sim.layouts import Layout
from tangram_sim.models import Model
from tangram_sim.parallelizers.laws import degree_laws, share_law
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Part, Pipeline, Stage
from tangram_sim.training.schedules import Schedule, schedule_named

# Columns of hwdb/nodes.csv and the key of a cluster file's group that each sets.
_NODE_COLUMNS = {"gpu": "gpu", "intra_link": "intra_link", "nic_gbps": "nic_gbps", "nics": "nics"}


def overlaid(cluster: dict[str, Any], hwdb: Hwdb, where: str) -> dict[str, Any]:
    """A plan file's cluster section, with figures from overlays of `hwdb` replacing the embedded ones.

    Rows of the shipped database change nothing: a plan replays as it was made.
    """
    fresh: dict[str, Any] = deepcopy(cluster)
    hardware = fresh.get("hardware")
    known = {"gpus": hwdb.gpu_names(), "links": hwdb.link_names(), "nodes": hwdb.node_names()}
    for table in ("gpus", "links"):
        figures = hardware.get(table) if isinstance(hardware, dict) else None
        if not isinstance(figures, dict):
            continue
        for name in list(figures):
            if name in known[table] and _own_columns(hwdb.row(table, name), hwdb):
                del figures[name]
    for group in fresh["nodes"] if isinstance(fresh.get("nodes"), list) else []:
        name = group.get("row") if isinstance(group, dict) else None
        if not isinstance(name, str) or name not in known["nodes"]:
            continue
        row = hwdb.row("nodes", name)
        own = _own_columns(row, hwdb)
        if "gpus" in own and int(row.number("gpus")) != group.get("gpus"):
            raise BadInputError(
                f"{where}: nodes of {name} have {row['gpus']} GPUs under `hwdb=`, {group.get('gpus')} in the "
                "plan; plan again"
            )
        for column in own & set(_NODE_COLUMNS):
            cell = row[column]
            value = int(row.number(column)) if column == "nics" else row.number(column)
            group[_NODE_COLUMNS[column]] = cell if column in ("gpu", "intra_link") else value
    return fresh


def _own_columns(row: Row, hwdb: Hwdb) -> set[str]:
    """Columns of a row that an overlay folder states."""
    folders = tuple(f"{folder}/" for folder in hwdb.folders[1:])
    return {
        column for column, origin in row.origins.items() if column != "name" and origin.startswith(folders)
    }


def check_pipelines(
    pipelines: Sequence[Pipeline], model: Model, cluster: Cluster, job: Job, where: str
) -> None:
    """Raise BadInputError, naming `where` and the stage, unless the decisions of a plan are consistent."""
    used: set[int] = set()
    for number, pipeline in enumerate(pipelines):
        name = f"{where}: pipeline {number}" if len(pipelines) > 1 else where
        _check_pipeline(pipeline, model, cluster, job, used, name)


def _check_pipeline(
    pipeline: Pipeline, model: Model, cluster: Cluster, job: Job, used: set[int], where: str
) -> None:
    """Check one pipeline; `used` holds the ranks of earlier pipelines, and this one's ranks are added."""
    stages = pipeline.stages
    schedule = schedule_named(job.schedule)
    _check_layers(stages, model, schedule, where)
    most = max(len(stage.chunks) for stage in stages)
    if not schedule.chunks[0] <= max(most, 1) <= schedule.chunks[1]:
        raise BadInputError(f"{where}: schedule {job.schedule} with up to {most} chunks per stage")
    if most > 1 and any(len(stage.chunks) != most for stage in stages):
        raise BadInputError(f"{where}: the {job.schedule} schedule needs {most} chunks in each stage")
    if schedule.whole_rounds and pipeline.microbatches % len(stages):
        raise BadInputError(
            f"{where}: the {job.schedule} schedule needs microbatches in multiples of the {len(stages)} "
            f"stages (they are {pipeline.microbatches})"
        )
    for number, stage in enumerate(stages):
        for rank in stage.ranks:
            if not 0 <= rank < cluster.gpus:
                raise BadInputError(
                    f"{where}: stage {number} names rank {rank}; the cluster has 0 to {cluster.gpus - 1}"
                )
            if rank in used:
                raise BadInputError(f"{where}: rank {rank} is used twice; a GPU belongs to one stage")
            used.add(rank)
        _check_stage(stage, pipeline.microbatch, model, job, f"{where}: stage {number}")


def _check_layers(stages: Sequence[Stage], model: Model, schedule: Schedule, where: str) -> None:
    """Check that stages hold every block exactly once and in order, embedding and head at the ends."""
    most = max(len(stage.chunks) for stage in stages)
    placed = {
        schedule.place(number, chunk, len(stages)): run
        for number, stage in enumerate(stages)
        for chunk, run in enumerate(stage.chunks)
    }
    runs = [placed[place] for place in sorted(placed)]
    position = 0
    for start, stop in runs:
        if start != position or stop <= start:
            raise BadInputError(
                f"{where}: the stages' chunks must hold the {model.layers} layers once each, in forward "
                f"order; after layer {position} comes [{start}, {stop})"
            )
        position = stop
    if position != model.layers:
        raise BadInputError(
            f"{where}: the stages' chunks hold {position} layers, the model has {model.layers}"
        )
    back = schedule.place(0, max(most, 1) - 1, len(stages)) == len(stages) * max(most, 1) - 1
    if not stages[0].embedding or not stages[0 if back else -1].head:
        behind = "the first one, where its chunks end," if back and len(stages) > 1 else "the last one"
        raise BadInputError(f"{where}: the first stage must hold the embedding and {behind} the head")
    if sum(stage.embedding for stage in stages) != 1 or sum(stage.head for stage in stages) != 1:
        raise BadInputError(f"{where}: embedding and head belong to one stage each")
    for number, stage in enumerate(stages):
        if not stage.chunks and not (stage.embedding or stage.head):
            raise BadInputError(f"{where}: stage {number} holds nothing")


def _check_stage(stage: Stage, microbatch: int, model: Model, job: Job, where: str) -> None:
    """Check that a stage's parts add up to its microbatch, and each part's layouts against the model."""
    taken = [part.sequences_per_microbatch for part in stage.parts]
    if sum(taken) != microbatch:
        raise BadInputError(
            f"{where}: takes {' + '.join(map(str, taken))}{f' = {sum(taken)}' if len(taken) > 1 else ''} "
            f"sequences of a microbatch of {microbatch}"
        )
    for number, part in enumerate(stage.parts):
        name = f"{where}, part {number}" if len(stage.parts) > 1 else where
        _check_runs(stage, part, name)
        for run in part.layouts:
            _check_layout(run.layout, part, model, job, name)


def _check_runs(stage: Stage, part: Part, where: str) -> None:
    """Check that layouts cover a stage's layers once and in order; without layers there is one layout."""
    runs = [run.layers for run in part.layouts]
    if not stage.chunks:
        if len(runs) != 1:
            raise BadInputError(f"{where}: {len(runs)} layouts for a stage without layers; give it one")
        return
    position, last = stage.chunks[0][0], stage.chunks[-1][1]
    for start, stop in runs:
        if start != position or stop <= start:
            break
        position = stop
    if position != last or runs[-1][1] != last:
        raise BadInputError(
            f"{where}: its layout covers layers {', '.join(str(list(run)) for run in runs)}, its chunks are "
            f"{[list(chunk) for chunk in stage.chunks]}; layouts cover each layer once, in order"
        )


def _check_layout(layout: Layout, part: Part, model: Model, job: Job, where: str) -> None:
    """Check one layout against its part's ranks and share, the model and the job."""
    share = part.sequences_per_microbatch
    if layout.gpus != len(part.ranks):
        raise BadInputError(
            f"{where}: layout {layout} takes {layout.gpus} GPUs, {len(part.ranks)} ranks are given"
        )
    for broken in (share_law(layout.dp, share), *degree_laws(model, job.seq, layout)):
        if broken:
            raise BadInputError(f"{where}: {broken}")
