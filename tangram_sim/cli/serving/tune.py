"""`tangram serve tune`: the engine settings with which a fleet serves most requests within an objective."""

from typing import TYPE_CHECKING

from tangram_sim.cli.asked import asked
from tangram_sim.questions.serve_tune import ServeTuneQuestion
from tangram_sim.reports.columns import ViewColumn

if TYPE_CHECKING:
    from tangram_sim.studies.serving_tuning import ServeTuneDocument, TunedReplicaDocument


def _settings(replica: "TunedReplicaDocument") -> str:
    return "   ".join(f"{key} {value}" for key, value in replica.settings.items())


_REPLICAS = (
    ViewColumn("replicas", "count", "{}"),
    ViewColumn("configuration", "name"),
    ViewColumn("settings", _settings),
    ViewColumn("requests/s alone", "goodput_rps", "{:.4g}"),
    ViewColumn("before", "default_goodput_rps", "{:.4g}"),
    ViewColumn("bound", "bound_rps", "{:.4g}"),
)


def print_tuned(found: "ServeTuneDocument") -> None:
    """Print the highest rate within the objective, and a line for each kind of replica."""
    from tangram_sim.cli.console import print_columns, print_line, print_notes

    before = found.default_goodput_rps
    more = f", {found.goodput_rps / before - 1.0:+.1%}" if before else ""
    print_line(
        f"{found.goodput_rps:.4g} requests/s with 99 % good (settings of the file: "
        f"{before:.4g}{more})   bound {found.bound_rps:.4g}"
    )
    print_line()
    print_columns(_REPLICAS, found.replicas)
    print_notes(found.notes)


command = asked(ServeTuneQuestion, print_tuned, reader="serve export")
