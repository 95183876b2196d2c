"""The formats of `tangram export` by name; every file is read back before it is handed out."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from tangram_sim.errors import TangramError, unknown_name
from tangram_sim.export import deepspeed, launch, megatron, rankmap, schedule_csv, torchtitan
from tangram_sim.export.uniform import CannotExportError, uniform_of
from tangram_sim.planners.uniform.shape import UniformPlan
from tangram_sim.training.plan import Plan
from tangram_sim.training.schedules.named import schedule_named


@dataclass(frozen=True, slots=True)
class Exported:
    """Exported files (text by name), and notes to the user."""

    files: dict[str, str]
    notes: tuple[str, ...]


def export(plan: Plan, to: str, source: str = "") -> Exported:
    """The launch configuration of a plan for a framework; `source` is its file, for the advice in a refusal.

    Raises UnknownNameError for another format, CannotExportError for a plan that a framework cannot express.
    """
    if to not in FORMATS:
        raise unknown_name("format", to, FORMATS)
    try:
        return FORMATS[to](plan)
    except CannotExportError as error:
        raise CannotExportError(f"{error}\n{_instead(plan, to, source)}") from None


def _instead(plan: Plan, to: str, source: str) -> str:
    """A hint: formats that can express this plan, and the command that finds a plan for the framework.

    A plan's file stands for its model and its cluster.
    """
    able = [name for name in FORMATS if name != to and _writes(plan, name)]
    job, given = plan.job, shlex.quote(source)
    asked = f"{given} {given}" if source else f"{plan.model.name} {plan.cluster.name}"
    return (
        f"it can be written as {', '.join(f'`to={name}`' for name in able)}; `tangram plan {asked} "
        f"--global-batch {job.global_batch} --seq {job.seq} --for {to}` looks for a plan that it can express"
    )


def _writes(plan: Plan, to: str) -> bool:
    try:
        FORMATS[to](plan)
    except CannotExportError:
        return False
    return True


def _what(plan: Plan) -> str:
    return f"{plan.model.name} on {plan.cluster.name}: {plan.gpus_used} processes"


def _same(found: object, given: object, what: str) -> None:
    """Raise TangramError unless a file that was just written reads back as what was written."""
    if found != given:
        raise TangramError(f"{what} reads back as another plan; this is a fault of the program: report it")


def _started(
    plan: Plan, ranks: tuple[int, ...], program: launch.StartedProgram = launch.BARE
) -> tuple[str, list[str]]:
    """(launch script, notes to the user)."""
    text = launch.write(ranks, plan.cluster, _what(plan), program)
    found = launch.read(text, plan.cluster)
    _same(found, ranks, launch.FILE)
    _same(launch.write(found, plan.cluster, _what(plan), program), text, launch.FILE)
    notes = []
    nodes = launch.split_nodes(launch.agents_of(ranks, plan.cluster))
    if nodes:
        notes.append(
            f"node {', '.join(map(str, nodes))} runs several agents: its ranks do not follow each other"
        )
    if len(ranks) < plan.cluster.gpus:
        notes.append(f"{plan.cluster.gpus - len(ranks)} GPUs of the cluster stay idle")
    return text, notes


def _rankmap(plan: Plan) -> Exported:
    text = rankmap.write(plan)
    _same(rankmap.read(text), plan.pipelines, rankmap.FILE)
    return Exported({rankmap.FILE: text}, ())


def _torchrun(plan: Plan) -> Exported:
    text, notes = _started(plan, rankmap.gpus_in_order(plan))
    notes.insert(0, f"torchrun starts processes; what each does is in {rankmap.FILE}, for your program")
    return Exported({launch.FILE: text, **_rankmap(plan).files}, tuple(notes))


def _pooled(
    plan: Plan,
    uniform: UniformPlan,
    files: dict[str, str],
    notes: list[str],
    program: launch.StartedProgram = launch.BARE,
) -> Exported:
    """The framework's files together with the launch script that gives each rank its GPU."""
    text, more = _started(plan, uniform.shape.ranks, program)
    if len(plan.pipelines) > 1 and uniform.zero_stage:
        notes.append(
            "equal pipelines became data parallelism: states are sharded over all of them, wider than planned"
        )
    return Exported({**files, launch.FILE: text}, (*notes, *more))


def _megatron(plan: Plan) -> Exported:
    uniform = uniform_of(plan, "Megatron-LM")
    text, notes = megatron.write(uniform)
    _same(megatron.read(text, uniform.shape.ranks), uniform.shape, megatron.FILE)
    program = launch.StartedProgram(tuple(shlex.split(text)), megatron.environment(uniform))
    return _pooled(plan, uniform, {megatron.FILE: text}, notes, program)


def _torchtitan(plan: Plan) -> Exported:
    uniform = uniform_of(plan, "TorchTitan")
    text, notes = torchtitan.write(uniform)
    found = torchtitan.read(text, uniform.shape.ranks, plan.model.layers)
    _same(found, uniform.shape, torchtitan.FILE)
    return _pooled(plan, uniform, {torchtitan.FILE: text}, notes)


def _deepspeed(plan: Plan) -> Exported:
    uniform = uniform_of(plan, "DeepSpeed")
    files, notes = deepspeed.write(uniform)
    found = deepspeed.read(files[deepspeed.FILE], files[deepspeed.PIPELINE_FILE], uniform.shape.ranks)
    _same(found, uniform.shape, deepspeed.FILE)
    return _pooled(plan, uniform, files, notes)


def _schedule(plan: Plan) -> Exported:
    files = schedule_csv.write(plan)
    schedule = schedule_named(plan.job.schedule)
    for number, pipeline in enumerate(plan.pipelines):
        depth = len(pipeline.stages)
        chunks = max(len(stage.chunks) for stage in pipeline.stages) or 1
        order = schedule.order(depth, pipeline.microbatches, chunks)
        name = schedule_csv.file_name(plan, number)
        _same(schedule_csv.read(files[name]), [order.stage(stage) for stage in range(depth)], name)
    note = "the order of passes alone: cuts, degrees and ranks are not in it (`to=rankmap` has them)"
    return Exported(files, (note,))


FORMATS: dict[str, Callable[[Plan], Exported]] = {
    "rankmap": _rankmap,
    "torchrun": _torchrun,
    "megatron": _megatron,
    "torchtitan": _torchtitan,
    "deepspeed": _deepspeed,
    "torch-pipeline-csv": _schedule,
}
