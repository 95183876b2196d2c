"""`tangram goodput`: how much of a plan's throughput remains after failures and checkpoints."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.cli.console import print_json, print_line, print_table
from tangram_sim.errors import BadInputError, unknown_name

if TYPE_CHECKING:
    from tangram_sim.studies.goodput_documents import GoodputDocument
    from tangram_sim.studies.goodput_questions import FailureFreeRate, GoodputQuestion

PlanFile = Annotated[
    Path | None, typer.Argument(metavar="[PLAN]", help="A file written by `tangram plan -o`; else --mtbf-s.")
]
Failures = Annotated[
    str | None,
    typer.Option(
        "--failures", help="A preset (llama3, rsc-1, rsc-2, ft-hsdp-32k) or a YAML file of classes."
    ),
]
CheckpointFile = Annotated[
    Path | None, typer.Option("--checkpoint", help="A YAML file with checkpoint tiers and recovery times.")
]
Mtbf = Annotated[
    float | None, typer.Option("--mtbf-s", help="Mean seconds between failures of the whole job.")
]
CheckpointS = Annotated[float | None, typer.Option("--checkpoint-s", help="Seconds a checkpoint blocks.")]
SaveS = Annotated[float, typer.Option("--save-s", help="Seconds until a checkpoint can be restored from.")]
Downtime = Annotated[
    float, typer.Option("--downtime-s", help="Seconds after a failure in which none strikes.")
]
RecoveryS = Annotated[float, typer.Option("--recovery-s", help="Seconds of restart, struck like work.")]
Period = Annotated[
    float | None, typer.Option("--period-s", help="Seconds between checkpoints.  [default: the best]")
]
Policy = Annotated[
    str, typer.Option("--policy", help="restart, or shrink: go on without the broken replica.")
]
Days = Annotated[float, typer.Option("--days", help="Days that the interval is for.")]
Quantile = Annotated[float, typer.Option("--quantile", help="Spares are enough with this probability.")]
Sample = Annotated[int, typer.Option("--sample", help="Failures to play in the event simulation.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of the event simulation.")]


def command(
    plan: PlanFile = None,
    failures: Failures = None,
    checkpoint: CheckpointFile = None,
    mtbf_s: Mtbf = None,
    checkpoint_s: CheckpointS = None,
    save_s: SaveS = 0.0,
    downtime_s: Downtime = 0.0,
    recovery_s: RecoveryS = 0.0,
    period_s: Period = None,
    policy: Policy = "restart",
    days: Days = 30.0,
    quantile: Quantile = 0.99,
    sample: Sample = 0,
    seed: Seed = 0,
    as_json: shared.AsJson = False,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """Useful share of time under failures, best checkpoint period, accounts, worth of each second."""
    from tangram_sim.studies.goodput import POLICIES, goodput_document, require_positive
    from tangram_sim.studies.goodput_questions import FailureFreeRate

    if policy not in POLICIES:
        raise unknown_name("policy", policy, POLICIES, "`tangram replay-trace` plays the others on a trace.")
    require_positive(
        [
            ("--mtbf-s", 1.0 if mtbf_s is None else mtbf_s, False),
            ("--checkpoint-s", 0.0 if checkpoint_s is None else checkpoint_s, True),
            ("--save-s", save_s, True),
            ("--downtime-s", downtime_s, True),
            ("--recovery-s", recovery_s, True),
            ("--period-s", 1.0 if period_s is None else period_s, False),
            ("--days", days, False),
        ]
    )
    if not 0 < quantile < 1:
        raise BadInputError(f"--quantile {quantile:g}: give a probability between 0 and 1, e.g. 0.99")
    if (checkpoint is None) == (checkpoint_s is None):
        raise BadInputError("give one of --checkpoint FILE and --checkpoint-s SECONDS")
    if (failures is None) == (mtbf_s is None):
        raise BadInputError(
            "give one of --failures NAME (with a plan, whose nodes fail) and --mtbf-s SECONDS"
        )
    if plan is None and (failures is not None or checkpoint is not None):
        raise BadInputError(
            "--failures and --checkpoint need a plan: its nodes fail, its bytes are saved; give PLAN, or "
            "--mtbf-s and --checkpoint-s"
        )
    period = math.nan if period_s is None else period_s
    scalars = (checkpoint_s or 0.0, downtime_s, recovery_s, save_s, period)
    if plan is None:
        from tangram_sim.studies.goodput_questions import setting_of_scalars

        setting, throughput = setting_of_scalars(mtbf_s or 0.0, *scalars), FailureFreeRate()
    else:
        setting, throughput = _of_plan(plan, failures, checkpoint, mtbf_s, scalars, hwdb)
    found = goodput_document(
        setting,
        throughput,
        policy=policy,
        window_days=days,
        quantile=quantile,
        sample=sample,
        seed=seed,
    )
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    _show(found)


def _of_plan(
    path: Path,
    failures: str | None,
    checkpoint: Path | None,
    mtbf_s: float | None,
    scalars: tuple[float, float, float, float, float],
    hwdb: list[Path] | None,
) -> tuple["GoodputQuestion", "FailureFreeRate"]:
    """The question about a plan file (nodes, bytes, step time), and its tokens/s without failures.

    `scalars`: seconds that a checkpoint blocks training, of downtime, of recovery, of saving, and of the
    checkpoint period.
    """
    from tangram_sim.reliability.checkpointing import (
        Checkpointing,
        CheckpointTier,
        RecoveryTimes,
        load_checkpointing,
    )
    from tangram_sim.reliability.failures import FailureClass, FailureModel, load_failures
    from tangram_sim.studies.goodput_questions import FailureFreeRate, setting_of_model
    from tangram_sim.studies.planstate import plan_on_nodes

    found = plan_on_nodes(path, shared.load_hwdb(hwdb))
    document, count = found.document, sum(found.nodes_by_gpu.values())
    if checkpoint is not None:
        checkpointing = load_checkpointing(
            checkpoint, count, found.state.total_bytes / count, found.most_held_bytes, document.step_s
        )
    else:
        block, down, recovery, save, period = scalars
        tier = CheckpointTier("checkpoint", block, save, 0.0, "all", period)
        checkpointing = Checkpointing((tier,), RecoveryTimes(down, 0.0, recovery, 0.0))
    if failures is not None:
        model = load_failures(failures)
    else:
        rate = 1.0 / mtbf_s if mtbf_s else 0.0
        model = FailureModel(
            "given", (FailureClass("failure", "node", 0.0, rate),), f"given: one failure in {mtbf_s:g} s"
        )
    setting = setting_of_model(model, found.nodes_by_gpu, checkpointing, found.replicas, found.lost_with_node)
    rate = document.tokens_per_s
    low = rate * document.step_s / document.step_s_high if document.step_s_high else rate
    high = rate * document.step_s / document.step_s_low if document.step_s_low else rate
    return setting, FailureFreeRate(rate, low, high)


def _show(found: "GoodputDocument") -> None:
    """Print the answer as sentences and tables."""
    from tangram_sim.units import show_seconds, show_span

    low, high = found.interval
    what = "useful share" if found.tokens_per_s is None else "tokens/s"
    rate = "" if found.tokens_per_s is None else f"   {found.tokens_per_s:,.0f} tokens/s"
    ends = f"{low:.4f} to {high:.4f}" if found.tokens_per_s is None else f"{low:,.0f} to {high:,.0f}"
    print_line(
        f"goodput {found.goodput:.4f}{rate}   90 % of windows of {found.window_days:g} days: {what} {ends}   "
        f"{f'one failure in {show_span(found.mtbf_s)}' if found.mtbf_s else 'nothing fails'}"
    )
    rows = [
        (
            name,
            show_seconds(period),
            f"{found.useful_share[name]:.4f}",
            f"{found.first_order_share[name]:.4f}",
        )
        for name, period in found.periods_s.items()
        if period is not None
    ]
    if rows:
        print_table(("period", "seconds", "useful share", "first order"), rows, right=(1, 2, 3))
    if len(found.tiers) > 1:
        print_table(
            ("tier", "period", "blocks", "until saved", "load", "survives"),
            [
                (
                    tier.name,
                    show_seconds(tier.period_s),
                    *(show_seconds(seconds) for seconds in (tier.block_s, tier.save_s, tier.load_s)),
                    tier.survives,
                )
                for tier in found.tiers
            ],
            right=(1, 2, 3, 4),
        )
    print_table(
        ("account", "share of time"),
        [
            (name.replace("_", " "), f"{part * 100:.2f} %")
            for name, part in found.accounts.items()
            if part > 0 or name == "useful"
        ],
        right=(1,),
    )
    if found.worth:
        tokens = found.tokens_per_s is not None
        print_table(
            ("one second less of", "now", "share gained", *(("tokens a day",) if tokens else ())),
            [
                (
                    worth.constant,
                    show_seconds(worth.seconds),
                    f"{worth.gain:.2e}",
                    *((f"{worth.tokens_per_day or 0.0:,.0f}",) if tokens else ()),
                )
                for worth in found.worth
            ],
            right=(1, 2, 3),
        )
    if found.spares:
        print_line(
            f"{found.spares.nodes} spare nodes are enough with probability {found.spares.quantile:g} "
            f"(repair {show_span(found.spares.repair_s)})"
        )
    if found.sample:
        print_line(
            f"{found.sample.failures:,} failures played: useful share {found.sample.useful_share:.4f} +- "
            f"{found.sample.standard_error:.4f}"
        )
    for note in found.notes:
        print_line(note)
