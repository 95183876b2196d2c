"""What-if and purchase at the sizes of their targets: a fleet of 64 GPUs, a catalogue of six kinds of node.

Prices here are round numbers of this benchmark, not anybody's offers.
"""

from pathlib import Path

FLEET = """\
name: fleet-64
nodes:
  - {count: 4, node: DGX-A100-80GB}
  - {count: 4, node: DGX-1-V100}
"""
CANDIDATES = (
    "p5.48xlarge:2",
    "DGX-H100:4",
    "p4d.24xlarge:4",
    "g6e.12xlarge:4",
    "DGX-A100-80GB:4",
    "p5en.48xlarge:2",
    "DGX-B200:1",
    "DGX-B200:2",
)
OFFERS = ("p5.48xlarge", "p5en.48xlarge", "p4d.24xlarge", "g6e.12xlarge", "g5.12xlarge", "ND96isr_H100_v5")
CATALOGUE = "offers:\n" + "".join(f"  - {{node: {name}, most: 4}}\n" for name in OFFERS)
PRICES = """\
nodes:
  g6e.12xlarge: {rent_usd_per_hour: 10.5, date: 2026-11-01, source: benchmark}
  g5.12xlarge: {rent_usd_per_hour: 5.7, date: 2026-11-01, source: benchmark}
economics: {pue: 1.3, usd_per_kwh: 0.1, date: 2026-11-01, source: benchmark}
"""
BUDGET = 150.0  # USD per hour


def write_inputs(folder: Path) -> None:
    """fleet.yaml, catalogue.yaml and prices.yaml."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fleet.yaml").write_text(FLEET, encoding="utf-8")
    (folder / "catalogue.yaml").write_text(CATALOGUE, encoding="utf-8")
    (folder / "prices.yaml").write_text(PRICES, encoding="utf-8")


def what_if_arguments(folder: Path) -> str:
    """Eight candidates on the fleet, one process, no cache."""
    adds = " ".join(f"--add {candidate}" for candidate in CANDIDATES)
    return f"what-if gpt3-6.7b {folder}/fleet.yaml {adds} --prices {folder}/prices.yaml --no-cache --jobs 1"


def purchase_arguments(folder: Path) -> str:
    """The catalogue under the budget, on all cores, answers kept in the folder."""
    return (
        f"purchase gpt3-6.7b {folder}/fleet.yaml --catalogue {folder}/catalogue.yaml --prices "
        f"{folder}/prices.yaml --budget-per-hour {BUDGET:g} --cache {folder}/cache --json"
    )
