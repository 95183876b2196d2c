"""The formats of `tangram export` by name; every file is read back before it is handed out."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from tangram_sim.errors import BadInputError, TangramError, unknown_name
from tangram_sim.export import (
    deepspeed,
    flagscale,
    folder,
    launch,
    megatron,
    rankmap,
    schedule_csv,
    torchtitan,
)
from tangram_sim.export.uniform import CannotExportError, require
from tangram_sim.planners.uniform.framework_models import model_objections
from tangram_sim.planners.uniform.frameworks import FRAMEWORKS, Framework, framework_named
from tangram_sim.planners.uniform.shape import UniformPlan, uniform_view
from tangram_sim.training.plan import Plan
from tangram_sim.training.schedules.named import schedule_named


@dataclass(frozen=True, slots=True)
class Exported:
    """Exported files (text by name), and notes to the user."""

    files: dict[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Options of an export: the framework's version, and whether the model may differ.

    `differing`: also write files that train another model than the planned one, each difference in a note.
    """

    version: str = ""  # the newest
    differing: bool = False


ANY_VERSION = Wanted()


def export(plan: Plan, to: str, source: str = "", *, version: str = "", differing: bool = False) -> Exported:
    """The launch configuration of a plan for a framework; `source` is the plan's file.

    `version` is the framework's, by default the newest known. `differing` writes files even if the framework
    cannot configure all of the model. Raises UnknownNameError for another format or version,
    CannotExportError for a plan that a framework cannot express.
    """
    if to not in FORMATS:
        raise unknown_name("format", to, FORMATS)
    if version and to not in FRAMEWORKS:
        raise BadInputError(
            f"`framework_version={version}`: {to} is no framework; those are {', '.join(FRAMEWORKS)}"
        )
    if to in FRAMEWORKS:
        framework_named(to, version)
    try:
        return FORMATS[to](plan, Wanted(version, differing))
    except CannotExportError as error:
        raise CannotExportError(f"{error}\n{_instead(plan, to, source, differing)}") from None


def _instead(plan: Plan, to: str, source: str, differing: bool) -> str:
    """A hint with formats that can express this plan, and the command that finds a plan for the framework.

    The command names the plan's file in place of its model and cluster.
    """
    able = [name for name in FORMATS if name != to and _writes(plan, name)]
    job, given = plan.job, shlex.quote(source)
    asked = f"{given} {given}" if source else f"{plan.model.name} {plan.cluster.name}"
    written = f"it can be written as {', '.join(f'`to={name}`' for name in able)}"
    if not differing and to in FRAMEWORKS and model_objections(to, FRAMEWORKS[to].version, plan.model):
        return f"{written}; `differing=true` writes files that train a model without what is named above"
    return (
        f"{written}; `tangram plan {asked} "
        f"--global-batch {job.global_batch} --seq {job.seq} --for {to}` looks for a plan that it can express"
    )


def _writes(plan: Plan, to: str) -> bool:
    try:
        FORMATS[to](plan, ANY_VERSION)
    except CannotExportError:
        return False
    return True


def _framework(plan: Plan, name: str, wanted: Wanted) -> tuple[Framework, list[str]]:
    """(framework, notes on model features it lacks). Raises CannotExportError where its rules are broken."""
    framework = framework_named(name, wanted.version)
    require(framework, plan, differing=wanted.differing)
    missing = model_objections(framework.name, framework.version, plan.model)
    return framework, [f"another model is trained: {reason}" for reason in missing]


def _what(plan: Plan) -> str:
    return f"{plan.model.name} on {plan.cluster.name}: {plan.gpus_used} processes"


def _same(found: object, given: object, what: str) -> None:
    """Raise TangramError unless a file that was just written reads back with the same content."""
    if found != given:
        raise TangramError(f"{what} reads back as another plan; this is a fault of the program: report it")


def _started(
    plan: Plan,
    ranks: tuple[int, ...],
    to: str,
    version: str = "",
    program: launch.StartedProgram = launch.BARE,
) -> tuple[dict[str, str], list[str]]:
    """(launch script and accompanying files, notes to the user)."""
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
    return {launch.FILE: text, **folder.files(to, version, ranks, plan.cluster, _what(plan))}, notes


def _rankmap(plan: Plan, _: Wanted = ANY_VERSION) -> Exported:
    text = rankmap.write(plan)
    _same(rankmap.read(text), plan.pipelines, rankmap.FILE)
    return Exported({rankmap.FILE: text}, ())


def _torchrun(plan: Plan, _: Wanted) -> Exported:
    files, notes = _started(plan, rankmap.gpus_in_order(plan), "torchrun")
    notes.insert(0, f"torchrun starts processes; what each does is in {rankmap.FILE}, for your program")
    return Exported({**files, **_rankmap(plan).files}, tuple(notes))


def _pooled(
    plan: Plan,
    uniform: UniformPlan,
    files: dict[str, str],
    notes: list[str],
    framework: Framework,
    program: launch.StartedProgram = launch.BARE,
) -> Exported:
    """The framework's files together with the launch script that gives each rank its GPU."""
    started, more = _started(plan, uniform.shape.ranks, framework.name, framework.version, program)
    if len(plan.pipelines) > 1 and uniform.layout.zero_stage:
        notes.append(
            "equal pipelines became data parallelism: states are sharded over all of them, wider than planned"
        )
    return Exported({**files, **started}, (*notes, *more))


def _megatron(plan: Plan, wanted: Wanted) -> Exported:
    framework, differences = _framework(plan, "megatron", wanted)
    uniform = uniform_view(plan)
    text, notes = megatron.write(uniform)
    _same(megatron.read(text, uniform.shape.ranks), uniform.shape, megatron.FILE)
    program = launch.StartedProgram(tuple(shlex.split(text)), megatron.environment(uniform))
    return _pooled(plan, uniform, {megatron.FILE: text}, differences + notes, framework, program)


def _torchtitan(plan: Plan, wanted: Wanted) -> Exported:
    framework, differences = _framework(plan, "torchtitan", wanted)
    uniform = uniform_view(plan)
    files, arguments, notes = torchtitan.write(framework, uniform)
    _same(torchtitan.read(files, uniform.shape.ranks, plan.model.layers), uniform.shape, "TorchTitan's file")
    return _pooled(plan, uniform, files, differences + notes, framework, launch.StartedProgram(arguments))


def _deepspeed(plan: Plan, wanted: Wanted) -> Exported:
    framework, _ = _framework(plan, "deepspeed", wanted)
    uniform = uniform_view(plan)
    files, notes = deepspeed.write(uniform)
    found = deepspeed.read(files[deepspeed.FILE], files[deepspeed.PIPELINE_FILE], uniform.shape.ranks)
    _same(found, uniform.shape, deepspeed.FILE)
    return _pooled(plan, uniform, files, notes, framework)


def _flagscale(plan: Plan, wanted: Wanted) -> Exported:
    _, differences = _framework(plan, "flagscale", wanted)
    text, arguments, notes = flagscale.write(plan)
    ranks = rankmap.gpus_in_order(plan)
    _same(flagscale.same(text, plan, ranks), True, flagscale.FILE)
    ordered = any(stage.layout.tp > 1 for stage in plan.pipelines[0].stages)
    environment = (("CUDA_DEVICE_MAX_CONNECTIONS", "1"),) if ordered else ()
    program = launch.StartedProgram(arguments, environment)
    files, more = _started(plan, ranks, "flagscale", program=program)
    return Exported({flagscale.FILE: text, **files}, (*differences, *notes, *more))


def _schedule(plan: Plan, _: Wanted) -> Exported:
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


FORMATS: dict[str, Callable[[Plan, Wanted], Exported]] = {
    "rankmap": _rankmap,
    "torchrun": _torchrun,
    "megatron": _megatron,
    "torchtitan": _torchtitan,
    "deepspeed": _deepspeed,
    "flagscale": _flagscale,
    "torch-pipeline-csv": _schedule,
}
