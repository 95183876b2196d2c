"""Plans to documents and back: what `-o plan.json` writes and `tangram simulate` reads."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tangram_sim.datafiles import read_json
from tangram_sim.errors import BadInputError, TangramError, unknown_name
from tangram_sim.hwdb import Hwdb, cluster_from_dict
from tangram_sim.hwdb.families.config import LARGEST_SIZE, MOST_LAYERS
from tangram_sim.layouts import RECOMPUTE, Layout
from tangram_sim.models import Block, Model
from tangram_sim.studies.documents import (
    SCHEMA_VERSION,
    JobDocument,
    LayoutDocument,
    PartDocument,
    PipelineDocument,
    PlanDocument,
    StageDocument,
)
from tangram_sim.studies.replay import check_pipelines, overlaid
from tangram_sim.training.job import RECIPES, Job
from tangram_sim.training.plan import (
    LayerLayout,
    Part,
    Pipeline,
    Plan,
    Stage,
    holds_batch,
    sequences_processed,
)
from tangram_sim.training.schedules import schedule_names

_BLOCK: TypeAdapter[Block] = TypeAdapter(Block)
_MODEL: TypeAdapter[Model] = TypeAdapter(Model)
_MAY_BE_ZERO = {
    *("query_rank", "kv_rank", "rope_dim", "window", "norm_parameters", "shared_width", "norms"),
    *("index_heads", "index_dim"),
}
# Left out of files where a model has none, so that files of other models stay as they were.
_SELDOM = ("output_gate", "linear", "index_heads", "index_dim")
_MUST_BE_POSITIVE = {"hidden", "vocab"}


def model_to_dict(model: Model) -> dict[str, Any]:
    """Everything that defines a model, equal neighbouring blocks once with their count."""
    fields = {name: getattr(model, name) for name in Model.__dataclass_fields__ if name != "blocks"}
    for name in ("rotary_base", "norm_epsilon", "defaults"):
        if not fields[name]:
            del fields[name]
    runs = [(block, len(list(same))) for block, same in groupby(model.blocks)]
    return {
        **fields,
        "blocks": [{"count": count, "block": _block_to_dict(block)} for block, count in runs],
    }


def _block_to_dict(block: Block) -> dict[str, Any]:
    dumped: dict[str, Any] = _BLOCK.dump_python(block)
    for key in _SELDOM:
        if not dumped["attention"][key]:
            del dumped["attention"][key]
    return dumped


def model_from_dict(data: dict[str, Any], where: str) -> Model:
    """The inverse of `model_to_dict`. Raises BadInputError naming `where` and the key."""
    try:
        runs = [(int(run["count"]), run["block"]) for run in data["blocks"]]
        if not runs or not all(1 <= count <= MOST_LAYERS for count, _ in runs):
            raise BadInputError(f"{where}: model.blocks: counts must be 1 to {MOST_LAYERS}")
        blocks = tuple(
            block for count, given in runs for block in [_block(given, f"{where}: model.blocks")] * count
        )
        model = _MODEL.validate_python({**data, "blocks": blocks})
    except ValidationError as error:
        raise BadInputError(f"{where}: model: {first_problem(error)}") from None
    except KeyError as error:
        raise BadInputError(f"{where}: model: key {error} is missing") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise BadInputError(f"{where}: model: malformed: {error}") from None
    known = {name: getattr(model, name) for name in Model.__dataclass_fields__}
    _require_agreement(
        {key: value for key, value in data.items() if key != "blocks"}, known, f"{where}: model"
    )
    _require_sizes(known, _MUST_BE_POSITIVE, f"{where}: model")
    return model


def _block(given: dict[str, Any], where: str) -> Block:
    """One block, every key known and every size sensible."""
    block = _BLOCK.validate_python(given)
    known = _BLOCK.dump_python(block)
    _require_agreement(given, known, where)
    attention, part = known["attention"], known["feed_forward"]
    for section in (known, attention, part):
        _require_sizes(section, set(section) - _MAY_BE_ZERO, where)
    if attention["heads"] % attention["kv_heads"] or attention["rope_dim"] > attention["head_dim"]:
        raise BadInputError(f"{where}: heads must be a multiple of kv_heads, and rope_dim at most head_dim")
    if part.get("active", 0) > part.get("experts", 0):
        raise BadInputError(f"{where}: {part['active']} active experts of {part['experts']}")
    return block


def _require_agreement(given: Any, known: Any, where: str) -> None:
    """Raise BadInputError for keys nobody knows, and for values that are not what they seem ("8" for 8)."""
    if not isinstance(given, dict) or not isinstance(known, dict):
        # JSON gives tuples back as lists.
        if (list(given) if isinstance(given, tuple) else given) != (
            list(known) if isinstance(known, tuple) else known
        ):
            raise BadInputError(f"{where}: {given!r} is not understood")
        return
    for key, value in given.items():
        if key not in known:
            raise BadInputError(f"{where}: {unknown_name('key', str(key), known)}")
        _require_agreement(value, known[key], f"{where}.{key}")


def _require_sizes(section: dict[str, Any], positive: set[str], where: str) -> None:
    for key, value in section.items():
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        least = 1 if key in positive else 0
        if not least <= value <= LARGEST_SIZE:
            raise BadInputError(f"{where}.{key}: {value} given; {least} to {LARGEST_SIZE} is wanted")


def first_problem(error: ValidationError) -> str:
    """The first problem of a validation error in plain words: key path and complaint."""
    problem = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in problem["loc"])
    more = f" (and {error.error_count() - 1} more problems)" if error.error_count() > 1 else ""
    return f"{path or 'document'}: {problem['msg'].lower()}{more}"


def job_document(job: Job) -> JobDocument:
    """The job as a document."""
    return JobDocument(
        global_batch=job.global_batch,
        seq=job.seq,
        dtype=job.dtype,
        optimizer=job.optimizer,
        schedule=job.schedule,
        trainable=job.trainable,
        flash_attention=job.flash_attention,
        dropout=job.dropout,
        stack=job.stack,
        gradient_bytes=job.gradient_bytes,
    )


def pipeline_documents(plan: Plan) -> list[PipelineDocument]:
    """The decisions of a plan."""
    return [
        PipelineDocument(
            microbatches=pipeline.microbatches,
            microbatch=pipeline.microbatch,
            stages=[_stage_document(stage) for stage in pipeline.stages],
        )
        for pipeline in plan.pipelines
    ]


def _stage_document(stage: Stage) -> StageDocument:
    parts = [
        PartDocument(
            island=part.island,
            ranks=list(part.ranks),
            sequences_per_microbatch=part.sequences_per_microbatch,
            layouts=[_layout_document(run) for run in part.layouts],
        )
        for part in stage.parts
    ]
    return StageDocument(chunks=list(stage.chunks), embedding=stage.embedding, head=stage.head, parts=parts)


def _layout_document(run: LayerLayout) -> LayoutDocument:
    layout = run.layout
    return LayoutDocument(
        layers=run.layers,
        tp=layout.tp,
        cp=layout.cp,
        ep=layout.ep,
        dp=layout.dp,
        zero_stage=layout.zero_stage,
        recompute=layout.recompute,
        sequence_parallel=layout.sequence_parallel,
        fsep=layout.fsep,
        slices=layout.slices,
    )


def plan_from_document(document: PlanDocument, hwdb: Hwdb, where: str) -> Plan:
    """The decisions of a plan file, with the model it embeds and its cluster as `hwdb` knows it.

    Figures of GPUs, links and nodes are the file's, except those that stand in an overlay of `hwdb`.
    Raises BadInputError naming `where`.
    """
    model = model_from_dict(document.model, where)
    _require_present(document.hwdb_rows, hwdb, where)
    cluster = cluster_from_dict(overlaid(document.cluster, hwdb, where), hwdb, f"{where}: cluster")
    try:
        job = Job(**document.job.model_dump())
    except TangramError as error:
        raise type(error)(f"{where}: job: {error}") from None
    for kind, given, known in (
        ("dtype", job.dtype, RECIPES),  # `auto` is settled in a plan
        ("schedule", job.schedule, schedule_names()),
    ):
        if given not in known:
            raise unknown_name(f"{kind} in {where}", given, known)
    pipelines = tuple(_pipeline(pipeline, where) for pipeline in document.pipelines)
    if not pipelines:
        raise BadInputError(f"{where}: 0 pipelines; a plan has one or more")
    check_pipelines(pipelines, model, cluster, job, where)
    total = sequences_processed(pipelines)
    if not holds_batch(pipelines, job.global_batch):
        raise BadInputError(
            f"{where}: pipelines process {total} sequences, the job's global_batch is {job.global_batch}"
        )
    return Plan(model, cluster, job, pipelines)


def _require_present(rows: Sequence[str], hwdb: Hwdb, where: str) -> None:
    """Raise UnknownNameError for a GPU or link that the plan was priced with and the database lacks."""
    for kind, table, names in (("GPU", "gpus", hwdb.gpu_names()), ("link", "links", hwdb.link_names())):
        for row in rows:
            name = row.removeprefix(f"{table}/")
            if name != row and name not in names:
                raise unknown_name(
                    kind,
                    name,
                    names,
                    f"{where} was priced with it: give `hwdb=` DIR with its row, or plan again.",
                )


def _pipeline(document: PipelineDocument, where: str) -> Pipeline:
    stages = []
    for stage in document.stages:
        parts = []
        for part in stage.parts:
            runs = []
            for run in part.layouts:
                if run.recompute not in RECOMPUTE:
                    raise unknown_name(f"recompute kind in {where}", run.recompute, RECOMPUTE)
                layout = Layout(
                    run.tp,
                    run.dp,
                    run.cp,
                    run.ep,
                    1,
                    run.zero_stage,
                    run.recompute,
                    run.sequence_parallel,
                    run.fsep,
                    run.slices,
                )
                runs.append(LayerLayout(run.layers, layout))
            parts.append(Part(part.island, tuple(part.ranks), part.sequences_per_microbatch, tuple(runs)))
        stages.append(Stage(tuple(stage.chunks), stage.embedding, stage.head, tuple(parts)))
    return Pipeline(document.microbatches, document.microbatch, tuple(stages))


def read_plan(path: Path) -> PlanDocument:
    """A plan file, checked against the schema.

    Raises BadInputError for another major schema version, unknown keys or malformed values.
    """
    data = read_json(path)
    if not isinstance(data, dict) or "schema_version" not in data:
        raise BadInputError(
            f"{path}: not a plan file: no schema_version; write one with `tangram plan ... -o {path.name}`"
        )
    version, major = str(data["schema_version"]), SCHEMA_VERSION.partition(".")[0]
    if version.partition(".")[0] != major:
        raise BadInputError(
            f"{path}: plan schema version {version[:20]!r}, this tangram-sim reads {major}.x; "
            "plan again with this version"
        )
    try:
        return PlanDocument.model_validate(data)
    except ValidationError as error:
        newer = (
            ""
            if version == SCHEMA_VERSION
            else f"; the file is of schema {version[:20]}, this is {SCHEMA_VERSION}"
        )
        raise BadInputError(f"{path}: {first_problem(error)}{newer}") from None
