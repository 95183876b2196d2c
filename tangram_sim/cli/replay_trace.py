"""`tangram replay-trace`: compares policies for nodes that leave and return, on one history."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.cli.console import print_json, print_line, print_table
from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.units import HOUR_S

if TYPE_CHECKING:
    from tangram_sim.availability import Availability
    from tangram_sim.reliability.spot.engine import Outcome
    from tangram_sim.reliability.spot.speeds import Speeds
    from tangram_sim.studies.replaying import ReplayDocument

Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A name in the table of speeds; without one a model as for `plan`."),
]
TraceFile = Annotated[
    Path,
    typer.Argument(metavar="TRACE", help="CSV: time_s,event,node[,kind][,value], or time_s[,kind],count."),
]
ClusterOfKinds = Annotated[
    str | None,
    typer.Argument(
        metavar="[CLUSTER]",
        help="Whose groups are the kinds of the trace: our planner then gives the speeds.",
    ),
]
Policies = Annotated[str, typer.Option("--policy", help="Names separated by commas, or all.")]
SpeedsFile = Annotated[
    Path | None,
    typer.Option("--speeds", "--table", help="CSV of samples/s by pipelines,stages, or by nodes."),
]
CostsFile = Annotated[Path | None, typer.Option("--costs", help="CSV of seconds of changing over.")]
TraceName = Annotated[str, typer.Option("--trace-name", help="Which trace of a file that holds several.")]
From = Annotated[float, typer.Option("--from-s", help="Start at this time of the trace.")]
Until = Annotated[float | None, typer.Option("--until-s", help="End there.  [default: the trace's end]")]
Join = Annotated[
    str, typer.Option("--join", help="When nodes that come are taken: at-once, next-loss or SECONDS.")
]
Boot = Annotated[float, typer.Option("--boot-s", help="Seconds until a node that came can be used.")]
Notice = Annotated[float, typer.Option("--notice-s", help="Seconds that losses are announced ahead.")]
RestartS = Annotated[
    float | None, typer.Option("--restart-s", help="Seconds of a restart, state and checkpoint apart.")
]
CheckpointS = Annotated[
    float | None, typer.Option("--checkpoint-s", help="Seconds that a checkpoint blocks.")
]
Every = Annotated[int | None, typer.Option("--checkpoint-every", help="Steps between checkpoints.")]
MigrateS = Annotated[
    float | None, typer.Option("--migrate-s", help="Seconds of going over from peers' state.")
]
ReconfigureS = Annotated[float, typer.Option("--reconfigure-s", help="Seconds of recombining pipelines.")]
DetectS = Annotated[float, typer.Option("--detect-s", help="Seconds until a loss is noticed.")]
Forecast = Annotated[str, typer.Option("--forecast", help="What hold and replan know: recent, or perfect.")]
Intervals = Annotated[int, typer.Option("--look-ahead", help="Intervals of a minute that hold looks ahead.")]
Price = Annotated[
    list[str] | None, typer.Option("--price", help="USD per node-hour: 0.92, or KIND=0.92; price events win.")
]
Kinds = Annotated[
    str, typer.Option("--kinds", help="mixed, ignored (all as the slowest), or the one kind to use.")
]
Search = Annotated[
    str, typer.Option("--search", help="auto, uniform (best uniform layout of a fleet), or full.")
]
LoadRate = Annotated[
    float, typer.Option("--load-bytes-per-s", help="What a node reads from a checkpoint (with a cluster).")
]
Batch = Annotated[
    str,
    typer.Option("--batch", help="keep the global batch, or scale it with the fleet (a pipeline's stays)."),
]
Timeline = Annotated[
    Path | None, typer.Option("--timeline", help="Write what each policy did when to this CSV file.")
]

Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Write the answer to this .json, or report.html with a timeline."),
]


def command(
    model: Model,
    trace: TraceFile,
    cluster: ClusterOfKinds = None,
    policy: Policies = "all",
    speeds: SpeedsFile = None,
    costs: CostsFile = None,
    trace_name: TraceName = "",
    from_s: From = 0.0,
    until_s: Until = None,
    join: Join = "at-once",
    boot_s: Boot = 0.0,
    notice_s: Notice = 0.0,
    restart_s: RestartS = None,
    checkpoint_s: CheckpointS = None,
    checkpoint_every: Every = None,
    migrate_s: MigrateS = None,
    reconfigure_s: ReconfigureS = 0.0,
    detect_s: DetectS = 0.0,
    forecast: Forecast = "recent",
    look_ahead: Intervals = 12,
    price: Price = None,
    global_batch: shared.GlobalBatch = 128,
    seq: shared.Seq = 2048,
    dtype: shared.Dtype = "auto",
    optimizer: shared.Optimizer = "adamw",
    stack: shared.Stack = "generic",
    kinds: Kinds = "mixed",
    search: Search = "auto",
    load_bytes_per_s: LoadRate = 1.25e9,
    batch: Batch = "keep",
    timeline: Timeline = None,
    output: Output = None,
    as_json: shared.AsJson = False,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """Replay a history of nodes coming and going under policies; the best first, and what none can beat."""
    from tangram_sim.cli.writing import require_writable
    from tangram_sim.reliability.spot.speeds import read_speeds
    from tangram_sim.reliability.spot.tracefile import read_trace
    from tangram_sim.reliability.spot.transitions import FixedTransitions, read_transitions
    from tangram_sim.studies.replaying import (
        BATCHES,
        FORECASTS,
        ReplayQuestion,
        policy_names,
        replay_document,
        with_notice,
        with_scaled_batch,
    )

    require_writable(output=output, timeline=timeline)
    names = policy_names(shared.names("--policy", policy))
    if forecast not in FORECASTS:
        raise unknown_name("forecast", forecast, FORECASTS)
    if batch not in BATCHES:
        raise unknown_name("--batch", batch, BATCHES)
    if look_ahead < 1:
        raise BadInputError(f"--look-ahead {look_ahead}: give 1 interval or more, e.g. 12")
    _require_seconds(
        {
            "--from-s": from_s,
            "--until-s": until_s,
            "--boot-s": boot_s,
            "--notice-s": notice_s,
            "--restart-s": restart_s,
            "--checkpoint-s": checkpoint_s,
            "--migrate-s": migrate_s,
            "--reconfigure-s": reconfigure_s,
            "--detect-s": detect_s,
        }
    )
    if (speeds is None) == (cluster is None):
        raise BadInputError(
            "give --speeds FILE, a table of samples/s, or a CLUSTER that our planner plans on: one of them"
        )
    history = read_trace(trace, trace_name, until_s or 0.0)
    stop = until_s or history.until_s
    if from_s >= stop:
        raise BadInputError(f"--from-s {from_s:g} is not before the end, {stop:g} s; give an earlier time")
    if from_s or until_s:
        history = history.window(from_s, stop)
    history = history.delayed(boot_s)
    prices = _prices(price, history.kinds)
    if cluster is not None:
        from tangram_sim.studies.planned_speeds import SEARCHES, planned_question

        if search not in SEARCHES:
            raise unknown_name("search", search, SEARCHES)
        if costs is not None or restart_s is not None or migrate_s is not None:
            raise BadInputError(
                "--costs, --restart-s and --migrate-s go with --speeds; with a cluster what moves is "
                "computed, see --load-bytes-per-s and --checkpoint-s"
            )
        if not load_bytes_per_s > 0:
            raise BadInputError(f"--load-bytes-per-s {load_bytes_per_s:g}: give bytes/s above zero")
        from tangram_sim.cli.progress import SlowProgress
        from tangram_sim.hwdb import load_cluster, load_model
        from tangram_sim.training.job import Job

        database = shared.load_hwdb(hwdb)

        def asked(kinds: str) -> ReplayQuestion:
            planned = planned_question(
                load_model(model),
                load_cluster(cluster or "", database),
                Job(global_batch, seq, dtype, optimizer, stack=stack),
                database,
                history,
                search=search,
                kinds=kinds,
                load_bytes_per_s=load_bytes_per_s,
                checkpoint_s=checkpoint_s,
                every_steps=checkpoint_every,
                detect_s=detect_s,
                scale_batch=batch == "scale",
            )
            return replace(
                planned,
                transitions=with_notice(planned.transitions, notice_s),
                join=_join(join),
                forecast=forecast,
                intervals=look_ahead,
                prices=prices,
            )

        with SlowProgress("planning fleets"):
            others = (*history.kinds, "ignored") if len(history.kinds) > 1 and kinds == "mixed" else ()
            document, found = replay_document(
                asked(kinds), names, {_kinds_words(other): asked(other) for other in others}
            )
        _finish(document, found, history, timeline, output, as_json)
        return
    samples = 0.0
    if costs is not None:
        transitions, samples = read_transitions(costs, model, restart_s)
    else:
        transitions = FixedTransitions(
            restart_s=restart_s or 0.0,
            migrate_s=migrate_s,
            reconfigure_s=reconfigure_s,
            detect_s=detect_s,
            block_s=checkpoint_s or 0.0,
            every_steps=checkpoint_every or 0,
            keeps_all=not checkpoint_every,
        )
    table: Speeds = read_speeds(speeds or Path(), model, samples)
    question = ReplayQuestion(
        history,
        with_scaled_batch(table, history) if batch == "scale" else table,
        with_notice(transitions, notice_s),
        _join(join),
        forecast,
        look_ahead,
        prices,
    )
    document, found = replay_document(question, names)
    _finish(document, found, history, timeline, output, as_json)


def _finish(
    document: "ReplayDocument",
    found: "dict[str, Outcome]",
    history: "Availability",
    timeline: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Write the timeline and the answer to the files asked for, then print the answer."""
    from tangram_sim.cli.writing import is_report
    from tangram_sim.datafiles import write_whole

    if timeline is not None:
        _write_timeline(timeline, found)
    if output is not None and is_report(output):
        from tangram_sim.reports.replays import replay_report

        write_whole(output, replay_report(document, found, history))
    elif output is not None:
        write_whole(output, document.model_dump_json(indent=2) + "\n")
    if as_json:
        print_json(document.model_dump(mode="json"))
        return
    show(document)


def _kinds_words(kinds: str) -> str:
    """Words for how a policy treats GPU kinds: `kinds ignored`, or `KINDS only`."""
    return "kinds ignored" if kinds == "ignored" else f"{kinds} only"


def _require_seconds(given: dict[str, float | None]) -> None:
    for option, value in given.items():
        if value is not None:
            shared.require_fraction(option, value)


def _join(text: str) -> str | float:
    """--join, when waiting nodes are taken in: `at-once`, `next-loss`, or a time in seconds.

    Raises BadInputError for anything else.
    """
    if text in ("at-once", "next-loss"):
        return text
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise BadInputError(f"--join {text}: give at-once, next-loss or seconds, e.g. 600")
    return seconds


def _prices(given: list[str] | None, kinds: tuple[str, ...]) -> dict[str, float] | None:
    """USD per node-hour by kind; None where nothing is stated."""
    if not given:
        return None
    found: dict[str, float] = {}
    for item in given:
        kind, equals, number = item.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise BadInputError(f"--price {item}: give USD per node-hour, e.g. 0.92 or V100=0.92")
        if equals and kind not in kinds:
            raise unknown_name("kind of node in the trace", kind, [name for name in kinds if name])
        found |= {kind: value} if equals else dict.fromkeys(kinds, value)
    return found


def _write_timeline(path: Path, found: "dict[str, Outcome]") -> None:
    from tangram_sim.datafiles import write_whole

    lines = ["policy,start_s,stop_s,account,layout"]
    for name, outcome in found.items():
        lines += [f"{name},{s.start_s:.3f},{s.stop_s:.3f},{s.account},{s.label}" for s in outcome.segments]
    write_whole(path, "\n".join(lines) + "\n")


def show(document: "ReplayDocument") -> None:
    """Policies in a table, best first."""
    tokens = any(policy.tokens is not None for policy in document.policies.values())
    unit = "tokens" if tokens else "samples"
    print_line(
        f"{document.trace}: {document.duration_s / HOUR_S:.2f} h   {document.events} events   "
        f"{document.losses} losses   {document.mean_nodes:.1f} nodes in the mean"
    )
    accounts = (
        [
            name
            for name in next(iter(document.policies.values())).accounts
            if any(policy.accounts[name] > 0 for policy in document.policies.values())
        ]
        if document.policies
        else []
    )
    priced = any(policy.usd is not None for policy in document.policies.values())
    rows = []
    for name, policy in document.policies.items():
        amount = policy.tokens if policy.tokens is not None else policy.samples
        each = policy.usd_per_million  # a policy that trained nothing has no price of a million
        dollars = [] if not priced else ["-" if each is None else f"{each:,.4g}"]
        rows.append(
            (
                name,
                f"{amount:,.0f}",
                f"{policy.of_upper_bound * 100:.1f} %",
                *dollars,
                *(f"{policy.accounts[account] / document.duration_s * 100:.1f} %" for account in accounts),
            )
        )
    headings = (
        "policy",
        unit,
        "of bound",
        *([f"$/M {unit}"] if priced else []),
        *(name.replace("_", " ") for name in accounts),
    )
    print_table(headings, rows, right=range(1, len(headings)))
    bound, short = document.upper_bound, document.upper_bound_short
    if short is None:
        print_line(f"no policy can beat {bound:,.0f} {unit}: changes that cost nothing")
    else:
        print_line(
            f"no policy can beat {short:,.0f} {unit}: changes that cost nothing, plans short of nodes "
            f"included; {bound:,.0f} with whole layouts"
        )
    for name, reason in document.left_out.items():
        print_line(f"{name} left out: {reason}")
    for note in document.notes:
        print_line(note)
