"""`tangram stragglers`: what slow ranks cost in a measured run."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.cli.console import print_json, print_line, print_table
from tangram_sim.errors import BadInputError

if TYPE_CHECKING:
    from tangram_sim.reliability.stragglers.remedies import Setup
    from tangram_sim.studies.stragglers import Diagnosis, StragglersDocument

_WORKERS = 8  # cells of the grid shown


def command(
    trace: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...",
            help="A table of operations (CSV, also gzipped), a timeline of `tangram simulate --trace`, or "
            "torch.profiler's files, one per rank (or their folder).",
        ),
    ],
    pp: Annotated[
        int, typer.Option("--pp", help="Stages of the pipeline, of torch.profiler's files; others say it.")
    ] = 1,
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            help="The run's plan file: layers per stage, tp and what moving columns costs come from it.",
        ),
    ] = None,
    layers: Annotated[
        str | None, typer.Option("--layers", help="Layers of each stage, e.g. 9,9,9,9: prices moving them.")
    ] = None,
    tp: Annotated[int, typer.Option("--tp", help="Tensor-parallel ranks of one worker.")] = 1,
    gpus_per_node: Annotated[
        int,
        typer.Option(
            "--gpus-per-node", help="Exchange tensor-parallel ranks inside nodes only; 0: anywhere."
        ),
    ] = 0,
    max_pruned: Annotated[
        float,
        typer.Option(
            "--max-pruned",
            help="Share of columns that ZERO-resizing may prune (accuracy is not simulated); 0: none.",
        ),
    ] = 0.0,
    sequences: Annotated[
        Path | None,
        typer.Option("--sequences", help="Lengths of the sequences, one line per microbatch of a step."),
    ] = None,
    restart_s: Annotated[
        float | None, typer.Option("--restart-s", help="Seconds from stopping a run to its next step.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the answer to this .json, or report.html.")
    ] = None,
    as_json: shared.AsJson = False,
) -> None:
    """Replay a measured step trace with and without its slow ranks: what they cost, which they are, what
    helps.
    """
    from tangram_sim.studies.stragglers import diagnose

    given = _setup(plan, layers, tp, gpus_per_node, max_pruned, sequences, restart_s)
    if pp < 1:
        raise BadInputError(f"--pp {pp}: give the number of stages, 1 or more")
    found = diagnose(trace, pp, given)
    if output is not None:
        _write(output, found, trace[0].name)
    if as_json:
        print_json(found.document.model_dump())
        return
    _show(found.document)


def _setup(
    plan: Path | None,
    layers: str | None,
    tp: int,
    gpus_per_node: int,
    max_pruned: float,
    sequences: Path | None,
    restart_s: float | None,
) -> "Setup":
    from tangram_sim.reliability.stragglers.remedies import RESTART_S, Setup
    from tangram_sim.studies.slow_files import read_sequences
    from tangram_sim.studies.stragglers import setup_of_plan

    found = Setup(tp=tp) if plan is None else setup_of_plan(plan)
    held, tp = found.layers, found.tp
    if layers is not None:
        words = shared.names("--layers", layers)
        if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
            raise BadInputError(f"--layers {layers}: give whole numbers, 1 or more, e.g. 9,9,9,9")
        held = tuple(int(word) for word in words)
    if tp < 1:
        raise BadInputError(f"--tp {tp}: give 1 or more")
    if gpus_per_node < 0 or gpus_per_node % tp:
        raise BadInputError(
            f"--gpus-per-node {gpus_per_node}: give a multiple of the {tp} ranks of a worker, or 0"
        )
    if not 0 <= max_pruned <= 1:
        raise BadInputError(f"--max-pruned {max_pruned:g}: give a share, 0 to 1")
    restart = RESTART_S if restart_s is None else restart_s
    shared.require_fraction("--restart-s", restart)
    lengths = read_sequences(sequences) if sequences else ()
    return Setup(held, tp, restart, max_pruned, lengths, gpus_per_node, found.added)


def _write(output: Path, found: "Diagnosis", name: str) -> None:
    from tangram_sim.datafiles import write_whole

    if output.suffix.lower() in (".html", ".htm"):
        from tangram_sim.reports.stragglers import stragglers_report

        write_whole(output, stragglers_report(found, name))
        return
    write_whole(output, found.document.model_dump_json(indent=2) + "\n")


def _show(document: "StragglersDocument") -> None:
    from tangram_sim.units import show_seconds

    print_line(
        f"{document.steps} steps of dp {document.dp} x {document.pp} stages, {document.microbatches} "
        f"microbatches"
        f"   measured {show_seconds(document.measured_step_s)}   replayed "
        f"{show_seconds(document.replayed_step_s)}   ideal {show_seconds(document.ideal_step_s)}"
    )
    print_line(
        f"slowdown S {document.slowdown:.4f}: {max(document.waste, 0.0) * 100:.1f} % of the time is lost  "
        f" M_W "
        f"{document.worker_share:.4f}   M_S {document.last_stage_share:.4f}   measured over replayed "
        f"{document.measured_over_replayed:.4f}"
    )
    print_line(f"pattern: {document.pattern}: {document.pattern_reason}")
    print_line()
    alone = sorted(document.alone.items(), key=lambda item: -item[1])
    print_table(("alone as measured", "S"), [(name, f"{s:.4f}") for name, s in alone[:_WORKERS]], right=(1,))
    workers = sorted(document.workers, key=lambda w: -w.slowdown)[:_WORKERS]
    rows = [(f"dp {w.dp}, stage {w.stage}", f"{w.slowdown:.4f}", f"{w.compute_ratio:.3f}") for w in workers]
    print_table(("worker", "S", "passes / mean"), rows, right=(1, 2))
    if document.remedies:
        shown = [
            (
                r.name,
                show_seconds(r.step_s),
                f"{r.gain:.3f} x",
                show_seconds(r.price_s),
                "never" if r.payback_s is None else show_seconds(r.payback_s),
                r.detail,
            )
            for r in document.remedies
        ]
        print_table(("remedy", "step", "gain", "price", "paid back", "what"), shown, right=(1, 2, 3, 4))
    for reason in document.remedies_left_out:
        print_line(f"not priced: {reason}")
    if len(document.escalation) > 1:
        words = [f"{e.name} after {show_seconds(e.after_s)}" for e in document.escalation[1:]]
        print_line(f"if it is not known how long the slow phase lasts: {', then '.join(words)}")
    for omission in document.omissions:
        print_line(f"left out: {_steps(omission.steps)}, {omission.reason}")


def _steps(steps: Sequence[int], most: int = 5) -> str:
    """Steps as they are read: `step 3`, `12 steps (3, 7, 8, 20, 31 ...)`."""
    if len(steps) == 1:
        return f"step {steps[0]}"
    listed = ", ".join(map(str, steps[:most])) + (" ..." if len(steps) > most else "")
    return f"{len(steps)} steps ({listed})"
