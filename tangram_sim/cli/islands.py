"""`tangram islands`: how a cluster is split into equal GPUs."""

from typing import TYPE_CHECKING

from tangram_sim.cli.asked import asked
from tangram_sim.cli.console import print_line, print_table
from tangram_sim.questions.islands import IslandsQuestion
from tangram_sim.units import show_bytes, show_rate

if TYPE_CHECKING:
    from tangram_sim.studies.documents import IslandsDocument


def show_islands(document: "IslandsDocument") -> None:
    """Print one row an island, why each is cut, and what is assumed."""
    rows = [
        (
            island.name,
            f"{island.nodes} x {island.gpus // island.nodes} {island.gpu}",
            f"{island.compute_flop_per_s / 1e12:.4g}" if island.compute_flop_per_s else "none",
            f"{island.memory_bytes / 1e9:.3g} GB",
            *map(show_bytes, (island.usable_memory_bytes, island.planned_memory_bytes)),
            f"{island.intra_link} {show_rate(island.intra_bytes_per_s)}",
            show_rate(island.nic_bytes_per_s),
        )
        for island in document.islands
    ]
    memories = ("memory sold", "usable", "planned")
    columns = ("island", "GPUs", f"{document.dtype} TFLOP/s", *memories, "inside a node", "NICs of a node")
    print_table(columns, rows, right=(2, 3, 4, 5, 7), leaves=(3, 5, 6))
    for island in document.islands:
        print_line(f"{island.name}: {island.reason}")
    for assumed in document.assumed:
        print_line(assumed)


command = asked(IslandsQuestion, show_islands)
