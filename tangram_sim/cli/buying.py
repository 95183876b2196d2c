"""What `what-if` and `purchase` print alike: how far assumptions move an answer, prices to fill in."""

import sys
from typing import TYPE_CHECKING

from tangram_sim.cli.console import print_line, print_notes, print_remark, print_table
from tangram_sim.units import percent

if TYPE_CHECKING:
    from tangram_sim.purchasing.sensitivity import Sensitivity
    from tangram_sim.studies.sweep import Sweep


def print_sensitivity(found: "Sensitivity") -> None:
    """Print two tables: how far each assumption moves the score, and which values change the winner."""
    from tangram_sim.reports.rounding import number, rounded

    def figure(value: float) -> str:
        return number(rounded(value))

    what = "USD per million tokens" if found.score == "usd_per_million_tokens" else "tokens/s"
    print_line(f"{what} of {found.best}: {figure(found.value)}. How far one assumption moves it:")
    if found.unseen:
        print_line(f"not looked at for lack of time: {', '.join(found.unseen)}")
    rows = [
        (
            swing.input.name,
            f"{figure(swing.input.low)} - {figure(swing.input.high)}",
            figure(swing.at_low),
            figure(swing.at_high),
            percent(swing.width / found.value, 1),
        )
        for swing in found.tornado[:12]
    ]
    print_table(("assumption", "from - to", "at low end", "at high end", "swing"), rows, right=(2, 3, 4))
    if found.unpriced:
        print_line(f"not ranked, for their bills are incomplete: {', '.join(found.unpriced)}")
    if found.second == found.best:
        return
    print_line(f"{found.second} would overtake {found.best} if")
    lines = [
        (
            flip.input.name,
            figure(flip.input.base),
            figure(flip.threshold),
            percent(flip.change, 1, signed=True),
        )
        for flip in found.flips
    ]
    if lines:
        print_table(("assumption", "is", "were", "change"), lines, right=(1, 2, 3))
    else:
        print_line(
            "nothing within reach flips it (prices to a tenth or ten times, efficiencies by three sigma)."
        )


def print_to_complete(text: str) -> None:
    """Print a price file with the missing figures to fill in; nothing if `text` is empty."""
    if text:
        print_line("for whole costs, complete this and give it with --prices FILE (docs/how-to/buy-gpus.md):")
        for line in text.splitlines():
            sys.stdout.write(f"  {line}\n")  # never wrapped: it is to be copied


def print_search(notes: tuple[str, ...], sweep: "Sweep") -> None:
    """Print the notes, then how many plans were computed and how many came from the cache."""
    print_notes((*notes, *sweep.notes))
    print_remark(f"searched: {sweep.made} plans made, {sweep.kept} taken from the cache")
