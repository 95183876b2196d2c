"""Kinds of GPU with one die: what was fitted on one holds for the others, and only for them."""

import pytest

from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.calibration import SAME_DIE, CalibrationTable, sister_kinds

HWDB = Hwdb.load()
SERVED = ("vllm", "", "llama3-70b", "fp8")


def test_sisters_are_mutual_and_share_architecture_and_peak() -> None:
    found = sister_kinds(HWDB)
    for name, sisters in found.items():
        gpu = HWDB.gpu(name)
        for other in sisters:
            assert name in found[other]
            assert HWDB.gpu(other).architecture == gpu.architecture
            peaks = [max(peak for _, peak in item.peaks) for item in (gpu, HWDB.gpu(other))]
            assert peaks[0] == pytest.approx(peaks[1], rel=SAME_DIE / (1.0 - SAME_DIE))


def test_a_kind_without_runs_takes_what_was_fitted_on_its_sister() -> None:
    table = CalibrationTable.load(HWDB)
    alone = CalibrationTable((0, row) for row in table.rows())
    for parameter in ("time_scale", "ttft_scale"):
        fitted = table.fit(*SERVED, "H100-SXM5-80GB")[parameter]
        assert table.fit(*SERVED, "H200-SXM-141GB")[parameter] == fitted
        assert alone.fit(*SERVED, "H200-SXM-141GB")[parameter] != fitted


def test_rows_of_its_own_come_before_a_sisters() -> None:
    table = CalibrationTable.load(HWDB)
    alone = CalibrationTable((0, row) for row in table.rows())
    assert table.fit(*SERVED, "H100-SXM5-80GB").values == alone.fit(*SERVED, "H100-SXM5-80GB").values


def test_another_die_takes_nothing() -> None:
    table = CalibrationTable.load(HWDB)
    assert "H100-SXM5-80GB" not in sister_kinds(HWDB)["L40S"]
    assert table.fit(*SERVED, "L40S")["time_scale"] == table.fit("vllm")["time_scale"]
