"""`tangram explain`: what the time of a plan's step is spent on, and why other layouts were not chosen."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.cli.console import print_json, print_line, print_table
from tangram_sim.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tangram_sim.hwdb import Hwdb
    from tangram_sim.reliability.checkpointing import CheckpointTier
    from tangram_sim.reliability.state import StateMap

_SHOWN = 12


def command(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A file written by `tangram plan -o`.")],
    lost: Annotated[
        str | None,
        typer.Option("--lost", help="Nodes that are gone, e.g. n3 or n3,n7: which state goes too?"),
    ] = None,
    partner_copies: Annotated[
        bool,
        typer.Option("--partner-copies", help="With --lost: the next node's memory holds a copy of each."),
    ] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", help="With --lost: a YAML file of tiers; which of them restores it?"),
    ] = None,
    as_json: shared.AsJson = False,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """Say where the step of a plan goes (critical path by cause), and what speaks against other layouts."""
    from tangram_sim.studies.explain import explain
    from tangram_sim.studies.planfile import plan_from_document, read_plan
    from tangram_sim.units import show_seconds

    database = shared.load_hwdb(hwdb)
    if lost is not None:
        _lost(plan, shared.names("--lost", lost), partner_copies, checkpoint, database, as_json)
        return
    if partner_copies or checkpoint is not None:
        raise BadInputError("--partner-copies and --checkpoint go with --lost: name the nodes that are gone")
    found = explain(plan_from_document(read_plan(plan), database, str(plan)), database)
    step_s, inside = found.forecast.step_s, found.forecast.inside
    if as_json:
        print_json(
            {
                "step_s": step_s,
                "critical_path": [{"cause": share.cause, "seconds": share.seconds} for share in found.path],
                "stages": [
                    [{"kernel": share.cause, "seconds": share.seconds} for share in shares]
                    for shares in inside
                ],
                "why_not": [
                    {
                        "stage": w.stage,
                        "layout": w.layout,
                        "verdict": w.verdict,
                        "pipeline": w.pipeline,
                        "part": w.part,
                    }
                    for w in found.why_not
                ],
            }
        )
        return
    print_line(f"The step of {show_seconds(step_s)} is, along its critical path:")
    rows = [
        (share.cause, show_seconds(share.seconds), f"{share.seconds / step_s * 100:.1f} %")
        for share in found.path[:_SHOWN]
    ]
    rest = sum(share.seconds for share in found.path[_SHOWN:])
    if rest > 0:
        rows.append(
            (f"{len(found.path) - _SHOWN} smaller ones", show_seconds(rest), f"{rest / step_s * 100:.1f} %")
        )
    print_table(("cause", "time", "share"), rows, right=(1, 2))
    print_line(
        "One microbatch through each stage, forward and backward, along the critical path of its kernels:"
    )
    kernels = [
        (
            found.forecast.name(seat),
            ", ".join(
                f"{share.cause} {show_seconds(share.seconds)}" for share in shares if share.seconds > 0
            ),
        )
        for seat, shares in zip(found.forecast.seats, inside, strict=True)
    ]
    print_table(("stage", "time by kernel class"), kernels)
    print_line("Why not otherwise (one stage changed, the whole step simulated):")
    print_table(("stage", "layout", "verdict"), [(w.name, w.layout, w.verdict) for w in found.why_not])
    print_line("A tp wider than a stage has GPUs needs another plan: `tangram plan ... --fix tp=8`.")


def _lost(
    plan: Path,
    names: tuple[str, ...],
    partners: bool,
    checkpoint: Path | None,
    database: "Hwdb",
    as_json: bool,
) -> None:
    """Print what training state is lost with the nodes `names`, and which copy or checkpoint restores it."""
    from tangram_sim.reliability.checkpointing import load_checkpointing
    from tangram_sim.studies.losses import lost_document
    from tangram_sim.studies.planfile import plan_from_document, read_plan
    from tangram_sim.units import show_bytes, show_seconds

    document = read_plan(plan)

    def tiers(state: "StateMap") -> "Sequence[CheckpointTier]":
        if checkpoint is None:
            return ()
        nodes, held = len(state.nodes), state.held_bytes().values()
        share = state.total_bytes / nodes
        return load_checkpointing(checkpoint, nodes, share, max(held), document.step_s).tiers

    made = plan_from_document(document, database, str(plan))
    found = lost_document(made, database, names, partners, tiers)
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    held = ", ".join(f"{what} {count}" for what, count in found.copies.items())
    print_line(f"copies of the state on different nodes, at least: {held}")
    if found.restored_from == "nothing lost":
        print_line(f"{', '.join(names)}: not used by the plan, nothing is lost")
        return
    if found.survives:
        print_line(
            f"{', '.join(names)} lost: all state is left, {show_bytes(found.refetched_bytes)} come from "
            f"{found.restored_from}"
        )
        return
    print_line(
        f"{', '.join(names)} lost: {show_bytes(found.gone_bytes)} have no copy left and come from the newest "
        "checkpoint that survives the loss of a node; the work since then is done again"
    )
    print_table(
        ("place", "state", "atoms", "bytes"),
        [
            (
                one.place,
                f"{one.what}, {one.part}",
                f"{one.layers[0]} to {one.layers[1] - 1}",
                show_bytes(one.bytes),
            )
            for one in found.gone
        ],
        right=(3,),
    )
    for tier in found.tiers:
        parts = "saving and loading, and half a period of work (auto)"
        parts = parts if tier.period_s is None else "work, saving and loading"
        verdict = f"left, {show_seconds(tier.costs_s)} of {parts}" if tier.left else "gone"
        because = f": {tier.reason}" if tier.reason else ""
        chosen = "   <- restores it" if tier.name == found.restored_by else ""
        print_line(f"tier {tier.name}: {verdict}{because}{chosen}")
    if found.tiers and found.restored_by is None:
        print_line("no tier is left: everything is lost; add one with `survives: all`")
