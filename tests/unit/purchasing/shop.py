"""A small catalogue with prices, and the fleets it extends."""

from datetime import date
from pathlib import Path

from tangram_sim.hwdb import Hwdb, load_cluster
from tangram_sim.purchasing.catalogue import Limits
from tangram_sim.purchasing.fleets import Fleet
from tangram_sim.training.job import Job

HWDB = Hwdb.load()

JOB = Job(global_batch=8, seq=1024)
TWO = Limits(nodes=2)
TODAY = date(2026, 11, 1)

PRICES = """\
nodes:
  V100x4: {rent_usd_per_hour: 7, rack_units: 4, delivery_days: 30, date: 2026-11-01, source: quote 2}
  A100x4:
    {capital_usd: 90000, delivery_days: 200, rack_units: 8, power_kw: 2.5, date: 2026-11-01, source: quote 3}
  T4x4: {rent_usd_per_hour: 1.5, delivery_days: 1, rack_units: 2, date: 2026-11-01, source: quote 1}
economics: {amortisation_years: 4, pue: 1.3, usd_per_kwh: 0.1, date: 2026-11-01, source: finance}
"""

NODES = {
    "V100x4": "{name: V100x4, gpu: V100-SXM2-32GB, gpus: 4, intra_link: NVLink2, nic_gbps: 100}",
    "A100x4": "{name: A100x4, gpu: A100-SXM4-40GB, gpus: 4, intra_link: NVLink3, nic_gbps: 100}",
    "T4x4": "{name: T4x4, gpu: T4, gpus: 4, intra_link: PCIe3x16, nic_gbps: 25}",
}


def fleet_of(folder: Path) -> Fleet:
    return Fleet.of(load_cluster(str(folder / "lab.yaml"), HWDB))
