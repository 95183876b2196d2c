"""`tangram plan`: finds the fastest way to spread the training of a model over a cluster."""

from typing import TYPE_CHECKING

from tangram_sim.cli import begun
from tangram_sim.cli import options as shared
from tangram_sim.cli import plan_options as own
from tangram_sim.cli.goal_options import RunOptions
from tangram_sim.cli.option_groups import grouped
from tangram_sim.errors import BadInputError, unknown_name

if TYPE_CHECKING:
    from tangram_sim.clusters import Cluster
    from tangram_sim.studies.results import Result


@grouped
def command(
    model: shared.ModelArgument,
    cluster: shared.ClusterArgument,
    global_batch: shared.GlobalBatch = 128,
    seq: shared.Seq = 2048,
    dtype: shared.Dtype = "auto",
    optimizer: shared.Optimizer = "adamw",
    planner: own.Planner = "tangram",
    schedule: own.PlanSchedule = "1f1b",
    objective: own.Objective = "throughput",
    *,
    run: RunOptions,
    search: own.TangramOptions,
    time_limit: own.TimeLimit = None,
    jobs: own.Jobs = 1,
    memory_margin: shared.MemoryMargin = "auto",
    stack: shared.Stack = "generic",
    slow: shared.Slow = None,
    output: shared.Output = None,
    as_json: shared.AsJson = False,
    trace: shared.Trace = None,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """Find the fastest plan for MODEL on CLUSTER and predict what it achieves."""
    if objective != "throughput":
        raise unknown_name("objective", objective, ["throughput"])
    if not 1 <= search.top <= shared.MOST_SHOWN:
        raise BadInputError(f"--top {search.top}: give 1 to {shared.MOST_SHOWN}")
    if planner != "tangram":
        slow_too = ["--slow"] if slow else []
        _refuse(f"--planner {planner}", "plan with tangram", search.given() + slow_too)
    if sum(given is not None for given in (slow, search.without, search.losses)) > 1:
        raise BadInputError(
            "--slow, --without and --losses: nodes are slow, gone, or may go; give one of them"
        )
    if search.losses is not None:
        who = "--losses, which compares uniform layouts over all GPUs,"
        _refuse(who, "plan without it", search.given(own.OF_LAYOUTS))
    time_limit_s = shared.time_limit_s(time_limit)
    margin, wanted = shared.memory_margin(memory_margin), run.wanted

    from tangram_sim.cli import writing
    from tangram_sim.cli.progress import SlowProgress
    from tangram_sim.hwdb import load_cluster, load_model
    from tangram_sim.studies import tried
    from tangram_sim.studies.training_run import with_run
    from tangram_sim.training.job import Job

    writing.require_writable(output=output, trace=trace, candidates=search.candidates)
    wishes = search.wishes(time_limit_s, jobs, margin)
    if search.losses is not None:
        from tangram_sim.studies.liveput_plans import lasting

        wishes = lasting(wishes)
    deadline = begun.deadline(time_limit_s)
    database = shared.load_hwdb(hwdb)
    job = Job(global_batch, seq, dtype, optimizer, schedule, stack=stack)
    if search.ablation:
        from tangram_sim.studies.ablation import ablation as ablated
        from tangram_sim.studies.ablation import table

        if as_json or output or trace or search.candidates or slow:
            raise BadInputError(
                "--ablation prints a table; drop --json, --output, --trace, --candidates and --slow"
            )
        from tangram_sim.cli.console import print_line

        with SlowProgress("planning with policies on and off"):
            rows = ablated(load_model(model), load_cluster(cluster, database), job, database, wishes)
        for line in table(rows).splitlines():
            print_line(line)
        return
    if planner != "tangram":
        from tangram_sim.studies.comparison import plan_with

        with deadline.hearing_interrupts():
            result = plan_with(
                planner,
                load_model(model),
                load_cluster(cluster, database),
                job,
                hwdb=database,
                deadline=deadline,
                memory_margin=margin,
            )
        result = with_run(result, database, wanted)
        writing.show(result, as_json=as_json, output=output, trace=trace)
        return
    loaded = load_cluster(cluster, database)

    with SlowProgress("planning") as progress, deadline.hearing_interrupts():

        def planned(where: "Cluster") -> "Result":
            return tried.plan(
                load_model(model),
                where,
                job,
                wishes=wishes,
                hwdb=database,
                progress=progress.report,
                deadline=deadline,
            )

        if slow is not None:
            from tangram_sim.studies.slow_files import read_every_slow
            from tangram_sim.studies.slow_plans import plan_slow

            result = plan_slow(loaded, read_every_slow(slow, loaded), database, planned)
        elif search.without is not None:
            from tangram_sim.studies.losses import plan_without

            result = plan_without(loaded, shared.names("--without", search.without), database, planned)
        elif search.losses is not None:
            from tangram_sim.studies.liveput_plans import plan_for_losses

            result = plan_for_losses(
                loaded, search.losses, load_model(model), job, database, planned, deadline, search.top
            )
        else:
            result = planned(loaded)
    result = with_run(result, database, wanted)
    output = writing.reported(result, output, database, as_json=as_json)
    writing.show(result, as_json=as_json, output=output, trace=trace, candidates=search.candidates)


def _refuse(who: str, instead: str, given: list[str]) -> None:
    """Raise BadInputError, naming the options `given`, which the planner `who` does not support."""
    if given:
        raise BadInputError(f"{who} does not know {', '.join(given)}; drop them, or {instead}")
