"""`tangram what-if`: plans and simulates a cluster again with nodes added or removed."""

from functools import partial

from tangram_sim.cli import buying, command_clock
from tangram_sim.cli.console import print_columns, print_line
from tangram_sim.cli.derived import derived
from tangram_sim.questions.served_fleets import ServedAnswer
from tangram_sim.questions.shared_fields import job_words
from tangram_sim.questions.what_if import WhatIfAnswer, WhatIfQuestion
from tangram_sim.reports.columns import ViewColumn, share


@derived
def command(question: WhatIfQuestion, outputs: buying.BoughtOutputs) -> None:
    """Print every candidate, and write the requested files."""
    from tangram_sim.cli.progress import SlowProgress
    from tangram_sim.reports.purchases import what_if_report

    served = question.served.given
    outputs.require(served=served)
    deadline = command_clock.deadline(question.look.limit_s)
    with SlowProgress("what-if") as progress, deadline.hearing_interrupts():
        found = question.answer(
            listener=progress, deadline=deadline, sensitive=not served and outputs.reports
        )
    if isinstance(found, ServedAnswer):
        outputs.fleets.show_fleets(found, "What if", "candidate")
        return
    outputs.finish(
        found,
        partial(_show, question),
        lambda: what_if_report(found.study, found.sensitivity, question.hardware.load()),
        lambda folder: buying.plan_files(folder, found.study.rows),
        "plans",
    )


def _show(question: WhatIfQuestion, found: WhatIfAnswer) -> None:
    """Print one row per candidate, the effect of assumptions, notes, and prices to fill in."""
    from tangram_sim.purchasing.notes import tokens_per_s_means
    from tangram_sim.purchasing.words import (
        days,
        energy,
        hourly,
        more_per_usd,
        outlay,
        per_million,
        planned,
        rate,
        uses,
    )
    from tangram_sim.units import show_amount

    study, hangs_on = found.study, found.sensitivity
    print_line(
        f"{study.model.name} on {found.fleet}, "
        f"{show_amount(question.money.tokens)} tokens   "
        f"{job_words(question.trained)}"
    )
    columns = (
        ViewColumn("candidate", "name"),
        ViewColumn("tokens/s", planned(rate), "{}"),
        ViewColumn("MFU", "document.mfu", share(1)),
        ViewColumn("time", planned(lambda row: days(row.days_to_train)), "{}"),
        ViewColumn("GPUs used, and busy", lambda row: uses(row) if row.document else row.reason),
        ViewColumn("site kW", planned(lambda row: row.site_kw), "{:.1f}"),
        ViewColumn("capital $", planned(outlay), "{}"),
        ViewColumn("$/h", planned(hourly), "{}"),
        ViewColumn("$/M tokens", planned(per_million), "{}"),
        ViewColumn("more tokens per $", planned(more_per_usd), "{}"),
    )
    print_columns(columns, study.rows, leaves=(4, 2, 5, 7, 6, 3))
    buying.print_power(study.rows)
    print_line(tokens_per_s_means(study.billing.failures))
    print_line(energy(study.rows, study.billing.prices))
    if hangs_on is not None and question.money.sensitivity:
        buying.print_sensitivity(hangs_on)
    islands = (
        ()
        if question.look.sub_islands is not False
        else ("islands were planned whole; `--sub-islands` searches finer and takes longer",)
    )
    buying.print_search((*islands, *found.unused, *study.notes), found.sweep)
    buying.print_to_complete(found.document.to_complete)
