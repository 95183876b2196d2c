"""`tangram islands`: how a cluster is split into equal GPUs."""

from typing import TYPE_CHECKING

from tangram_sim.cli.asked import asked
from tangram_sim.cli.console import print_columns, print_line
from tangram_sim.questions.islands import IslandsQuestion
from tangram_sim.reports.columns import ViewColumn
from tangram_sim.units import show_bytes, show_rate

if TYPE_CHECKING:
    from tangram_sim.studies.documents import IslandsDocument


def show_islands(document: "IslandsDocument") -> None:
    """Print one row per island, why each is cut, and assumptions."""
    columns = (
        ViewColumn("island", "name"),
        ViewColumn("GPUs", lambda island: f"{island.nodes} x {island.gpus // island.nodes} {island.gpu}"),
        ViewColumn(f"{document.dtype} TFLOP/s", "compute_flop_per_s", _teraflops),
        ViewColumn("memory sold", "memory_bytes", lambda sold: f"{sold / 1e9:.3g} GB"),
        ViewColumn("usable", "usable_memory_bytes", show_bytes),
        ViewColumn("planned", "planned_memory_bytes", show_bytes),
        ViewColumn("inside a node", lambda each: f"{each.intra_link} {show_rate(each.intra_bytes_per_s)}"),
        ViewColumn("NICs of a node", "nic_bytes_per_s", show_rate),
    )
    print_columns(columns, document.islands, leaves=(3, 5, 6))
    for island in document.islands:
        print_line(f"{island.name}: {island.reason}")
    for assumed in document.assumed:
        print_line(assumed)


def _teraflops(flop_per_s: float) -> str:
    return f"{flop_per_s / 1e12:.4g}" if flop_per_s else "none"


command = asked(IslandsQuestion, show_islands)
