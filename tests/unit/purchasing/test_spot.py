"""Fleets rented on spot: preemptions are failures of what is bought, and a policy lives with them."""

import math
from pathlib import Path

import pytest

from tangram_sim.purchasing import costs
from tangram_sim.reliability.periods import daly_interval_s, elastic_share, useful_share
from tests.commands import MODEL, tangram


def test_waiting_for_a_node_is_downtime_and_going_on_is_elastic() -> None:
    both = 1 / (1 / 1e6 + 1 / 5e3)
    waiting = 600 * both / 5e3
    found = costs.goodput_on_spot(1e6, 5e3, 20.0, 120.0, 600.0, 1)
    period = daly_interval_s(both, 20.0) + 20.0
    assert found.fraction == pytest.approx(useful_share(both, period, 20.0, waiting, 120.0))
    shrunk = costs.goodput_on_spot(1e6, 5e3, 20.0, 120.0, 600.0, 4)
    assert shrunk.fraction == pytest.approx(elastic_share(both, 4, 120.0, waiting))
    assert shrunk.interval_s == math.inf


def test_without_preemptions_to_speak_of_it_is_the_plain_goodput() -> None:
    assert costs.goodput_on_spot(1e5, 1e15, 30.0, 300.0, 600.0, 1).fraction == pytest.approx(
        costs.goodput(1e5, 30.0, 300.0).fraction
    )


CLUSTER = "name: lab\nnodes:\n  - {count: 1, gpu: T4, gpus: 2, intra_link: PCIe3x16, nic_gbps: 25}\n"
NODE = "name: V100x2\ngpu: V100-PCIe-16GB\ngpus: 2\nintra_link: PCIe3x16\nnic_gbps: 25\n"
PRICES = """\
nodes:
  V100x2: {rent_usd_per_hour: 5, spot_usd_per_hour: 2, date: 2026-11-01, source: quote}
economics:
  {pue: 1.3, usd_per_kwh: 0.1, checkpoint_s: 20, restart_s: 200, mtbf_hours: 900, date: 2026-11-01, source: a}
"""


def test_more_losses_leave_less_and_are_paid_at_the_spot_price(tmp_path: Path) -> None:
    for name, text in (("m", MODEL), ("c", CLUSTER), ("V100x2", NODE), ("p", PRICES)):
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "offers.yaml").write_text(f"offers: [{{node: {tmp_path}/V100x2.yaml, most: 1}}]\n")

    def asked(*more: object) -> tuple[float, float]:
        found = tangram(
            "purchase", tmp_path / "m.yaml", tmp_path / "c.yaml", "--catalogue", tmp_path / "offers.yaml",
            "--max-nodes", 1, "--prices", tmp_path / "p.yaml", "--global-batch", 8, "--seq", 512,
            "--no-cache", "--jobs", 1, "--order-date", "2026-11-01", "--json", *more,
        )  # fmt: skip
        assert found.code == 0, found.err
        row = found.json["front"][-1]["rows"][0]
        assert {item["kind"] for item in row["charges"] if item["of"].startswith("+")} == {"spot"}
        return row["goodput"], row["tokens_per_s"]

    steady, some, many = asked("--spot", 0.01), asked("--acquire", "spot"), asked("--spot", 1.0)
    assert steady[0] > some[0] > many[0]
    assert steady[1] > some[1] > many[1]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--spot", 0), "above zero"),
        (("--spot", 0.1, "--acquire", "buy"), "drop one of the two"),
        (("--spot", 0.1, "--spot-policy", "hope"), "unknown spot policy"),
    ],
)
def test_what_is_no_preemption_is_named(more: tuple[object, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "offers.yaml").write_text("offers: [{node: p4d.24xlarge, most: 1}]\n")
    found = tangram("purchase", "gpt3-125m", "azure-c1", "--catalogue", tmp_path / "offers.yaml", *more)
    assert found.code == 2
    assert said in found.err
