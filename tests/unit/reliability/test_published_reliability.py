"""Published figures of reliability, against the package's closed forms."""

import math
import re

import pytest

from tangram_sim.reliability import periods
from tests.unit.reliability.test_goodput import figures


def effective_training_ratio(failures_per_s: float, checkpoint_s: float, start_s: float) -> float:
    """Expected effective training time ratio of a long job, queueing left out.

    (1 - N r (u0 + dt/2)) / (1 + w/dt) with dt = sqrt(2 w/(N r)): Kokolis et al., arXiv:2410.21680 (form read
    in two summaries). `failures_per_s` is N r of the whole job, `start_s` u0, `checkpoint_s` w.
    """
    if failures_per_s <= 0:
        return 1.0
    interval = math.sqrt(2 * checkpoint_s / failures_per_s)
    lost = failures_per_s * (start_s + interval / 2)
    return max(0.0, 1 - lost) / (1 + (checkpoint_s / interval if interval else 0.0))


def test_published_reliability_figures() -> None:
    for row in figures("reliability"):
        if "write 5 min" in row["setting"]:
            rate = float(re.search(r"rf ([\d.]+)", row["setting"])[1])  # type: ignore[index]
            found = effective_training_ratio(1500 * rate / 1000 / 86400, 300, 300)
            assert found == pytest.approx(float(row["value"]), abs=0.01)
        if row["metric"] == "effective time, restart":
            assert pytest.approx(float(row["value"]), abs=0.01) == (18 - 10) / 18
            assert periods.elastic_share(18 * 60, 12, 180, 420) > (18 - 10) / 18
