"""Verbs that `tangram` finds by entry point: `validate testbed`, `validate device`, `calibrate kernels`.

Imports no torch: a verb says what to install where it is missing.
"""

import contextlib
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from tangram_sim.cli.console import print_json, print_line, print_table
from tangram_sim.cli.writing import require_writable
from tangram_sim.datafiles import write_whole
from tangram_sim.errors import BadInputError, TangramError
from tangram_validate.testbed.errors import TestbedError, require_torch


@contextlib.contextmanager
def ended_cleanly() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind like an error, so that ranks and links are removed."""

    def leave(number: int, _: object) -> None:
        raise TestbedError(f"ended by {signal.Signals(number).name}; ranks and links were removed")

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def require_folder(output: Path | None) -> None:
    """Refuse an output folder that cannot be written, before any work."""
    if output is None:
        return
    if output.exists() and not output.is_dir():
        raise BadInputError(f"--output {output}: is a file; name a folder")
    output.mkdir(parents=True, exist_ok=True)


def testbed(
    suite: Annotated[
        str,
        typer.Option("--suite", help="minute, small, full; stragglers: slow ranks; failures: killed ones."),
    ] = "small",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for CSVs, scores and plot.")
    ] = None,
    scenario: Annotated[
        list[str] | None, typer.Option("--scenario", help="Only these; shipped names or YAML files.")
    ] = None,
    loopback: Annotated[
        bool, typer.Option("--loopback", help="No shaped links: needs no root, shows schedules only.")
    ] = False,
    anywhere: Annotated[
        bool, typer.Option("--anywhere", help="Loopback where no shaped links can be made, and only there.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print scores as one JSON object.")] = False,
) -> None:
    """Predict plans on an emulated cluster, run them for real, and score the predictions."""
    require_torch()
    require_folder(output)
    if suite == "failures":
        if scenario:
            raise BadInputError("--scenario: the suite failures has none; leave it out")
        _failures(output, as_json)
        return
    from tangram_validate.testbed import report
    from tangram_validate.testbed.network import missing_means
    from tangram_validate.testbed.suite import run_suite

    if anywhere and not loopback and (why := missing_means()):
        print(f"no shaped links here ({why}): loopback", file=sys.stderr, flush=True)  # noqa: T201 - progress
        loopback = True
    if suite == "stragglers":
        _stragglers(loopback, output, as_json)
        return
    with tempfile.TemporaryDirectory(prefix="tangram-testbed-") as scratch, ended_cleanly():
        made = run_suite(
            suite,
            Path(scratch),
            loopback=loopback,
            scenarios=scenario or (),
            say=lambda text: print(text, file=sys.stderr, flush=True),  # noqa: T201 - progress
        )
        if output is not None:
            report.write_all(made, output)
    found = report.score_of(made)
    if as_json:
        print_json(found)
        return
    columns = ("runs", "plans", "median", "worst", "bias", "tau", "regret", "null", "waiting >= 30 %")
    rows = []
    for kind in ("emulated", "real"):
        if kind in found:
            item = found[kind]
            shares = [f"{item[key] * 100:.1f} %" for key in ("median_ape", "worst_ape", "bias")]
            rest = [f"{item[key] * 100:.1f} %" for key in ("top1_regret", "null_median_ape", "waiting_share")]
            rows.append((kind, str(item["n"]), *shares, f"{item['kendall_tau']:.2f}", *rest))
    print_table(columns, rows, tuple(range(1, len(columns))))
    for note in made.notes:
        print_line(f"note: {note}")
    if output is not None:
        print_line(f"every run, plans, scores and plot written to {output}")


def _stragglers(loopback: bool, output: Path | None, as_json: bool) -> None:
    """The suite of slow ranks: slowdowns predicted and measured."""
    from tangram_validate.testbed.report import machine
    from tangram_validate.testbed.stragglers import order_is_right, run_stragglers

    with tempfile.TemporaryDirectory(prefix="tangram-testbed-") as scratch, ended_cleanly():
        held = run_stragglers(
            Path(scratch),
            loopback=loopback,
            say=lambda text: print(text, file=sys.stderr, flush=True),  # noqa: T201 - progress
        )
    cases = [
        {
            "group": held_row.case.group,
            "name": held_row.case.name,
            "factor": held_row.case.factor,
            "predicted_s": held_row.case.predicted_s,
            "measured_s": held_row.measured_s,
            "spread": held_row.spread,
            "predicted_slowdown": held_row.predicted_slowdown,
            "measured_slowdown": held_row.measured_slowdown,
            "error": held_row.error,
        }
        for held_row in held
    ]
    worst = {
        group: max(abs(held_row.error) for held_row in held if held_row.case.group == group)
        for group in dict.fromkeys(held_row.case.group for held_row in held)
    }
    found = {"cases": cases, "worst_error": worst, "order_right": order_is_right(held), "machine": machine()}
    if output is not None:
        write_whole(output / "stragglers.json", json.dumps(found, indent=2) + "\n")
    if as_json:
        print_json(found)
        return
    rows = [
        (
            held_row.case.group,
            held_row.case.name,
            f"{held_row.case.factor:g} x",
            f"{held_row.predicted_slowdown:.3f}",
            f"{held_row.measured_slowdown:.3f}",
            f"{held_row.error * 100:+.1f} %",
            f"{held_row.spread * 100:.1f} %",
        )
        for held_row in held
    ]
    columns = ("group", "way", "slow rank", "predicted", "measured", "error", "spread")
    print_table(columns, rows, (2, 3, 4, 5, 6))
    print_line(
        f"order of the ways {'right' if found['order_right'] else 'WRONG'}, differences within 3 % are ties"
    )


def _failures(output: Path | None, as_json: bool) -> None:
    """Kill a rank for real, and show what each policy took beside what was predicted."""
    from dataclasses import asdict

    from tangram_validate.testbed.failures import FailingRun, run_failures

    with ended_cleanly():
        constants, scored = run_failures(
            FailingRun(),
            say=lambda text: print(text, file=sys.stderr, flush=True),  # noqa: T201 - progress
        )
    rows = [asdict(scored_account) for scored_account in scored]
    if output is not None:
        lines = ["policy,account,predicted_s,measured_s"]
        lines += [
            f"{scored_account.policy},{scored_account.account},{scored_account.predicted_s:.6f},{scored_account.measured_s:.6f}"
            for scored_account in scored
        ]
        write_whole(output / "failures.csv", "\n".join(lines) + "\n")
    if as_json:
        print_json({"constants": asdict(constants), "accounts": rows})
        return
    print_line(
        f"measured without failures: step {constants.step_s * 1e3:.1f} ms "
        f"({constants.fewer_step_s * 1e3:.1f} ms with a rank less), checkpoint "
        f"{constants.checkpoint_s * 1e3:.1f} ms, start {constants.start_s:.2f} s, "
        f"forming a group {constants.join_s * 1e3:.0f} ms"
    )
    print_table(
        ("policy", "account", "predicted", "measured"),
        [
            (
                scored_account.policy,
                scored_account.account.replace("_", " "),
                f"{scored_account.predicted_s:.2f} s",
                f"{scored_account.measured_s:.2f} s",
            )
            for scored_account in scored
        ],
        right=(2, 3),
    )


def device(
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    gpu: Annotated[str, typer.Option("--gpu", help="Its row of gpus.csv, for datasheet peaks.")] = "",
    most: Annotated[int, typer.Option("--most", min=0, help="Only so many configurations; 0 is all.")] = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write results to this CSV.")] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Write raw timings of kernels to this JSON file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict and measure training steps of one device: blocks, dtypes, recompute, batch, sequence."""
    require_torch()
    _require_device(device)
    require_writable(output=output, trace=trace)
    import statistics

    from tangram_validate.testbed.device import run_suite
    from tangram_validate.testbed.report import machine

    with tempfile.TemporaryDirectory(prefix="tangram-device-") as scratch:
        found = run_suite(
            device,
            Path(scratch),
            gpu=gpu,
            most=most,
            trace=trace,
            say=lambda text: print(text, file=sys.stderr, flush=True),  # noqa: T201 - progress
        )
    if output is not None:
        facts = machine(device)
        lines = [
            "model,dtype,recompute,rows,seq,predicted_s,measured_s,runs_s,predicted_bytes,measured_bytes,load,"
            + ",".join(facts)
        ]
        for measurement in found:
            c, runs = (
                measurement.configuration,
                " ".join(f"{seconds:.6f}" for seconds in measurement.measured_s),
            )
            cells = (
                c.model,
                c.dtype,
                c.recompute,
                c.rows,
                c.seq,
                f"{measurement.predicted_s:.6f}",
                f"{measurement.step_s:.6f}",
            )
            sizes = (
                runs,
                f"{measurement.predicted_bytes:.0f}",
                f"{measurement.measured_bytes:.0f}",
                f"{measurement.load:.1f}",
            )
            lines.append(",".join(map(str, (*cells, *sizes, *facts.values()))))
        write_whole(output, "\n".join(lines) + "\n")
    scores: dict[str, Any] = {
        "device": device,
        "n": len(found),
        "time_median_ape": statistics.median(
            abs(measurement.predicted_s / measurement.step_s - 1) for measurement in found
        ),
        "memory_median_ape": statistics.median(
            abs(measurement.predicted_bytes / measurement.measured_bytes - 1) for measurement in found
        ),
    }
    if as_json:
        print_json(scores)
        return
    print_line(
        f"{len(found)} configurations on {device}: median error of the step "
        f"{scores['time_median_ape'] * 100:.1f} %, "
        f"of peak memory {scores['memory_median_ape'] * 100:.1f} %"
    )


def kernels(
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option("--dtype", help="fp32, bf16, fp16; several with commas.")] = "fp32",
    size: Annotated[str, typer.Option("--size", help="small or large; default by device.")] = "",
    gpu: Annotated[str, typer.Option("--gpu", help="Its row of gpus.csv, for datasheet peaks.")] = "",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the raw trace to this JSON file.")
    ] = None,
) -> None:
    """Time our own kernel microbenchmarks with torch; print the hwdb efficiency rows they distil to."""
    require_torch()
    _require_device(device)
    from datetime import UTC, datetime

    from tangram_sim.hwdb import Hwdb
    from tangram_validate.testbed import kernels as bench

    require_writable(output=output)
    database = Hwdb.load()
    known = database.gpu(gpu) if gpu else None
    dtypes = tuple(dict.fromkeys(part.strip() for part in dtype.split(",")))
    for item in dtypes:
        if item not in bench.TORCH_DTYPES:
            raise BadInputError(f"--dtype {item}: give some of {', '.join(bench.TORCH_DTYPES)}")
        if known is not None and not known.peak_flop_per_s(item):
            raise BadInputError(f"--gpu {known.name} has no {item} units; choose another --dtype")
    size = size or ("large" if device == "cuda" else "small")
    if size not in bench.SHAPES:
        raise BadInputError(f"--size {size}: give one of {', '.join(bench.SHAPES)}")
    timings = {item: bench.measure(device, item, bench.SHAPES[size]) for item in dtypes}
    if output is not None:
        write_whole(output, bench.trace_text([each for some in timings.values() for each in some], device))
    today = datetime.now(UTC).date().isoformat()
    for number, (item, found) in enumerate(timings.items()):
        if known is not None:
            name, peak, memory = known.name, known.peak_flop_per_s(item), known.memory_bytes_per_s
        else:  # no datasheet to hold it against: the best that was seen is the peak
            name, peak, memory = f"this-{device}", *bench.best_rates(found)
            print_line(
                f"# no --gpu: fractions of the best seen here, {peak / 1e12:.4g} TFLOP/s, "
                f"{memory / 1e9:.4g} GB/s"
            )
        exponents = database.efficiency(known, item).exponent_columns.value if known is not None else 0.0
        for line in bench.distil(found, name, item, peak, memory, today, exponents)[number > 0 :]:
            sys.stdout.write(line + "\n")
    if output is not None:
        print_line(f"# raw trace written to {output}")


def _require_device(device: str) -> None:
    if device not in ("cpu", "cuda"):
        raise BadInputError(f"--device {device}: give cpu or cuda")


def _run(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A file written by `tangram plan -o`.")],
    steps: Annotated[int, typer.Option("--steps", min=1, help="Measured steps, behind one of warm-up.")] = 3,
    device: Annotated[str, typer.Option("--device", help="cpu (gloo) or cuda (NCCL).")] = "cpu",
    dtype: Annotated[str, typer.Option("--dtype", help="Compute in this dtype, not in the plan's.")] = "",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Where ranks meet; 0: any.")] = 0,
    compare: Annotated[bool, typer.Option("--compare", help="Also train in one process.")] = False,
    hwdb: Annotated[list[Path] | None, typer.Option("--hwdb", help="Folder with rows of your own.")] = None,
) -> None:
    """Train a real transformer for some steps under a plan file; prints one JSON object."""
    require_torch()
    _require_device(device)
    from tangram_validate.testbed.runner import run_file

    with ended_cleanly():
        found = run_file(
            plan, steps=steps, device=device, dtype=dtype, port=port, compare=compare, hwdb=hwdb or ()
        )
    print_json(found)


def _testbed(
    scenario: Annotated[str, typer.Argument(help="A shipped scenario or a YAML file.")] = "two-speeds",
    once: Annotated[bool, typer.Option("--once", help="Build it, show it, remove it.")] = False,
) -> None:
    """Build the emulated cluster of a scenario and hold it until interrupted."""
    from tangram_validate.testbed.network import Network
    from tangram_validate.testbed.scenario import load_scenario

    found = load_scenario(scenario)
    with ended_cleanly(), Network(found.network) as network:
        for rank, kind in enumerate(found.kinds):
            print_line(
                f"rank {rank} ({kind}): namespace {network.tag}-{rank}, address {network.address(rank)}"
            )
        sys.stdout.flush()
        if not once:
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()


def _main(command: object) -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(command)  # type: ignore[type-var] # a function, as typer wants
    try:
        app()
    except TangramError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


def run_main() -> None:
    """`validate/run.py`."""
    _main(_run)


def testbed_main() -> None:
    """`validate/testbed.py`."""
    _main(_testbed)
