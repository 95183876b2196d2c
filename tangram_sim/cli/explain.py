"""`tangram explain`: what the time of a plan's step is spent on, and why other layouts were not chosen."""

from typing import TYPE_CHECKING

from tangram_sim.cli.asked import asked
from tangram_sim.cli.console import print_columns, print_line
from tangram_sim.questions.explain import ExplainQuestion
from tangram_sim.reports.columns import ViewColumn, share
from tangram_sim.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tangram_sim.studies.explain import ExplainDocument, KernelDocument
    from tangram_sim.studies.losses import LostDocument

_SHOWN = 12


def _kernels(shares: "Sequence[KernelDocument]") -> str:
    return ", ".join(f"{each.kernel} {show_seconds(each.seconds)}" for each in shares if each.seconds > 0)


_KERNELS = ViewColumn("stage", "0"), ViewColumn("time by kernel class", lambda row: _kernels(row[1]))
_OTHERWISE = ViewColumn("stage", "name"), ViewColumn("layout", "layout"), ViewColumn("verdict", "verdict")
_GONE = (
    ViewColumn("place", "place"),
    ViewColumn("state", lambda loss: f"{loss.what}, {loss.part}"),
    ViewColumn("atoms", lambda loss: f"{loss.layers[0]} to {loss.layers[1] - 1}"),
    ViewColumn("bytes", "bytes", show_bytes),
)


def _show(found: "ExplainDocument | LostDocument") -> None:
    """Print where the step goes; for lost nodes, which state is lost with them and what restores it."""
    from tangram_sim.studies.explain import ExplainDocument

    if isinstance(found, ExplainDocument):
        _show_step(found)
    else:
        _show_lost(found)


def _show_step(found: "ExplainDocument") -> None:
    """Print the critical path, the kernels of each stage, and why other layouts were not chosen."""
    print_line(f"The step of {show_seconds(found.step_s)} is, along its critical path:")
    rows = [(part.cause, part.seconds) for part in found.critical_path[:_SHOWN]]
    rest = sum(part.seconds for part in found.critical_path[_SHOWN:])
    if rest > 0:
        rows.append((f"{len(found.critical_path) - _SHOWN} smaller ones", rest))
    columns = (
        ViewColumn("cause", "0"),
        ViewColumn("time", "1", show_seconds),
        ViewColumn("share", lambda row: row[1] / found.step_s, share(1)),
    )
    print_columns(columns, rows)
    print_line(
        "One microbatch through each stage, forward and backward, along the critical path of its kernels:"
    )
    print_columns(_KERNELS, [*zip(found.stage_names, found.stages, strict=True)])
    print_line("Why not otherwise (one stage changed, the whole step simulated):")
    print_columns(_OTHERWISE, found.why_not)
    print_line("A tp wider than a stage has GPUs needs another plan: `tangram plan ... --fix tp=8`.")


def _show_lost(found: "LostDocument") -> None:
    """Print what training state is lost, and which copy or checkpoint restores it."""
    names = ", ".join(found.lost)
    held = ", ".join(f"{what} {count}" for what, count in found.copies.items())
    print_line(f"copies of the state on different nodes, at least: {held}")
    if found.restored_from == "nothing lost":
        print_line(f"{names}: not used by the plan, nothing is lost")
        return
    if found.survives:
        print_line(
            f"{names} lost: all state is left, {show_bytes(found.refetched_bytes)} come from "
            f"{found.restored_from}"
        )
        return
    print_line(
        f"{names} lost: {show_bytes(found.gone_bytes)} have no copy left and come from the newest "
        "checkpoint that survives the loss of a node; the work since then is done again"
    )
    print_columns(_GONE, found.gone)
    for tier in found.tiers:
        parts = "saving and loading, and half a period of work (auto)"
        parts = parts if tier.period_s is None else "work, saving and loading"
        verdict = f"left, {show_seconds(tier.costs_s)} of {parts}" if tier.left else "gone"
        because = f": {tier.reason}" if tier.reason else ""
        chosen = "   <- restores it" if tier.name == found.restored_by else ""
        print_line(f"tier {tier.name}: {verdict}{because}{chosen}")
    if found.tiers and found.restored_by is None:
        print_line("no tier is left: everything is lost; add one with `survives: all`")


command = asked(ExplainQuestion, _show)
