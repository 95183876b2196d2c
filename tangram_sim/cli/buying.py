"""What `what-if` and `purchase` print and write alike: sensitivity, prices to fill in, plans, reports."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tangram_sim.cli.console import print_columns, print_line, print_notes, print_remark
from tangram_sim.cli.outputs import Shown
from tangram_sim.cli.served_fleets import FleetOutputs
from tangram_sim.fields import OUTPUT, option
from tangram_sim.reports.columns import ViewColumn, share

if TYPE_CHECKING:
    from tangram_sim.purchasing.rows import WhatIfRow
    from tangram_sim.purchasing.sensitivity import Sensitivity
    from tangram_sim.studies.sweep import Sweep


@dataclass(frozen=True, slots=True)
class BoughtOutputs(Shown):
    """Where candidates, or mixes to buy, are written."""

    output: Path | None = option(
        None,
        "A folder for the plans and the choice, or report.html: all of it to look at.",
        spelled="-o,--output",
        group=OUTPUT,
    )

    @property
    def fleets(self) -> FleetOutputs:
        """Outputs for an answer on fleets that serve: a report or JSON, no folder."""
        return FleetOutputs(self.as_json, self.output)

    @property
    def reports(self) -> bool:
        """Whether an HTML report is asked for."""
        from tangram_sim.cli.writing import is_report

        return is_report(self.output)

    def require(self, *, served: bool) -> None:
        """Raise BadInputError, before any work is done, for an output that cannot be written."""
        from tangram_sim.cli.writing import require_output

        if served:
            self.fleets.require_kind()
        else:
            require_output(self.output)

    def finish(
        self,
        found: Any,
        tables: Callable[[Any], None],
        page: Callable[[], str],
        files: Callable[[Path], dict[Path, str]],
        what: str,
    ) -> None:
        """Print an answer, then write its report (`page`) or `files` into a folder.

        `what` describes the files. The answer is printed first, so that a full disk loses no result.
        """
        from tangram_sim.cli.writing import write_report
        from tangram_sim.datafiles import write_all

        self.show(found, tables)
        if self.output is None:
            return
        if self.reports:
            write_report(self.output, page())
        else:
            write_all(files(self.output))
        if not self.as_json:
            said = "report" if self.reports else what
            more = "" if self.reports else " (`tangram simulate` replays a plan)"
            print_line(f"{said} written to {self.output}{more}")


def plan_files(folder: Path, rows: "Iterable[WhatIfRow]") -> dict[Path, str]:
    """The plan files in a folder, text by path, of the rows that have a plan."""
    from tangram_sim.cli.writing import plan_text
    from tangram_sim.purchasing.whatif import plan_path

    return {plan_path(folder, row.name): plan_text(row.document) for row in rows if row.document is not None}


def print_sensitivity(found: "Sensitivity") -> None:
    """Print two tables: how far each assumption moves the score, and which values change the winner."""
    from tangram_sim.reports.rounding import number, rounded

    def figure(value: float) -> str:
        return number(rounded(value))

    what = "USD per million tokens" if found.score == "usd_per_million_tokens" else "tokens/s"
    print_line(f"{what} of {found.best}: {figure(found.value)}. How far one assumption moves it:")
    if found.unseen:
        print_line(f"not looked at for lack of time: {', '.join(found.unseen)}")
    columns = (
        ViewColumn("assumption", "input.name"),
        ViewColumn("from - to", lambda swing: f"{figure(swing.input.low)} - {figure(swing.input.high)}"),
        ViewColumn("at low end", "at_low", figure),
        ViewColumn("at high end", "at_high", figure),
        ViewColumn("swing", lambda swing: swing.width / found.value, share(1)),
    )
    print_columns(columns, found.tornado[:12])
    if found.unpriced:
        print_line(f"not ranked, for their bills are incomplete: {', '.join(found.unpriced)}")
    if found.second == found.best:
        return
    print_line(f"{found.second} would overtake {found.best} if")
    flips = (
        ViewColumn("assumption", "input.name"),
        ViewColumn("is", "input.base", figure),
        ViewColumn("were", "threshold", figure),
        ViewColumn("change", "change", share(1, signed=True)),
    )
    if found.flips:
        print_columns(flips, found.flips)
    else:
        print_line(
            "nothing within reach flips it (prices to a tenth or ten times, efficiencies by three sigma)."
        )


def print_power(rows: "Iterable[WhatIfRow]") -> None:
    """Print the power and the capped GPUs of every candidate that was planned under options on power."""
    from tangram_sim.reports.plan_words import power_words

    for row in rows:
        if row.document is not None and row.document.power is not None:
            print_line(f"{row.name}: {'; '.join(power_words(row.document.power))}")


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
