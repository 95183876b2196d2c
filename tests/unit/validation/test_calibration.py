"""Calibration recovers known constants from synthetic measurements; the shipped rows are what it writes."""

import csv
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from tangram_validate.calibration import kinds, profiles, robust, rows, tables
from tangram_validate.calibration.__main__ import main
from tangram_validate.calibration.attention import (
    CACHE_BYTES,
    attention_seconds,
    fit_attention,
    training_like,
)
from tangram_validate.calibration.gemm import (
    OPERANDS,
    Device,
    GemmParameters,
    fit_gemm,
    gemm_seconds,
    transfer_errors,
)
from tangram_validate.calibration.tables import AttentionTable, GemmTable

from tangram_sim.cost.device import Rates, device_rates
from tangram_sim.cost.kernels import fused_attention_s, gemm_s
from tangram_sim.datafiles import shipped
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tangram_sim.hwdb.efficiency import INHERITED
from tangram_sim.precision import PRECISIONS
from tests.places import ROOT

DEVICE = Device(1e15, 3e12)
TRUE = GemmParameters(0.7, 0.8, 3e-6)
BF16, FP8 = OPERANDS["bfloat16"], OPERANDS["fp8"]


def rates(parameters: GemmParameters = TRUE, attention: float = 0.5) -> Rates:
    """The product's rates for these constants, of a device with flash attention."""
    database = Hwdb.load()
    return replace(
        device_rates(database.gpu("H100-SXM5-80GB"), PRECISIONS["bf16"].types, database),
        gemm_flop_per_s=DEVICE.peak_flop_per_s * parameters.efficiency,
        attention_flop_per_s=DEVICE.peak_flop_per_s * attention,
        memory_bytes_per_s=DEVICE.memory_bytes_per_s * parameters.memory_efficiency,
        launch_s=parameters.launch_s,
    )


def products(noise: float = 0.0, seed: int = 1) -> GemmTable:
    """A grid of products timed by the product's own formula; with noise, also a few gross outliers."""
    sizes = 2.0 ** np.arange(5, 15)
    m, n, k = (axis.ravel() for axis in np.meshgrid(sizes, sizes[2:], sizes[2:]))
    random = np.random.default_rng(seed)
    seconds = gemm_s(m, n, k, rates(), operand_bytes=2.0, output_bytes=2.0)
    seconds = seconds * np.exp(noise * random.standard_normal(len(m)))
    if noise:
        seconds[::50] *= 5.0
    return GemmTable(m, n, k, seconds, np.zeros(len(m), dtype=np.int64))


def cores() -> AttentionTable:
    """Attention of a 0.5-efficient core and a cache write, over a grid of shapes."""
    axes = np.meshgrid(
        [1.0, 4.0, 8.0], [1024.0, 2048.0, 4096.0, 8192.0], [8.0, 32.0], [4.0, 8.0], [64.0, 128.0]
    )
    batch, seq, heads, kv_heads, dim = (axis.ravel() for axis in axes)
    visible = batch * seq * (seq / 2) * heads
    passed = batch * seq * (heads + kv_heads) * 2.0 * dim * 2.0
    core = np.array(
        [
            float(fused_attention_s(scores, int(head), int(head), moved, rates()))
            for scores, head, moved in zip(visible, dim, passed, strict=True)
        ]
    )
    cache = batch * seq * kv_heads * dim * CACHE_BYTES / rates().memory_bytes_per_s
    seconds = core + cache + TRUE.launch_s
    return AttentionTable(batch, seq, heads, kv_heads, dim, seconds, np.zeros(len(seq), dtype=np.int64))


class TestGemm:
    def test_the_curve_is_the_product_s_own(self):
        """Fitted constants mean in the simulator what they meant in the fit."""
        table = products()
        np.testing.assert_allclose(gemm_seconds(table, BF16, DEVICE, TRUE), table.seconds, rtol=1e-12)

    def test_exact_data_give_the_constants_back(self):
        fit = fit_gemm(products(), BF16, DEVICE)
        np.testing.assert_allclose(fit.parameters, TRUE, rtol=1e-4)
        assert fit.big_error < 1e-4
        assert fit.error < 1e-4
        assert fit.n == len(products().m)

    def test_noise_and_outliers_leave_them_nearly_alone(self):
        """2 % of the rows are 5 times too slow: a least-squares fit would follow them."""
        fit = fit_gemm(products(noise=0.05), BF16, DEVICE)
        np.testing.assert_allclose(fit.parameters, TRUE, rtol=0.02)
        assert fit.sigma.efficiency / fit.parameters.efficiency == pytest.approx(0.05, rel=0.4)
        assert 0.02 < fit.big_error < 0.05

    def test_quantised_tables_keep_the_memory_given_and_price_the_casts(self):
        """fp8 tables start from 16-bit inputs; ignoring the casts would blame the product for them."""
        table = products()
        measured = gemm_seconds(table, FP8, DEVICE, TRUE)
        fit = fit_gemm(replace(table, seconds=measured), FP8, DEVICE, TRUE.memory_efficiency)
        np.testing.assert_allclose(fit.parameters, TRUE, rtol=1e-4)
        blind = fit_gemm(
            replace(table, seconds=measured), FP8._replace(cast=0.0), DEVICE, TRUE.memory_efficiency
        )
        assert blind.parameters.efficiency < 0.97 * TRUE.efficiency

    def test_every_framework_s_table_weighs_the_same(self):
        """A table nine times longer and 10 % slower pulls the constant halfway, not nine tenths."""
        fast = products()
        slow = fit_gemm(replace(fast, seconds=1.1 * fast.seconds), BF16, DEVICE).parameters.efficiency
        both = GemmTable(
            *(np.concatenate([getattr(fast, name)] * 10) for name in "mnk"),
            np.concatenate([fast.seconds] + [1.1 * fast.seconds] * 9),
            np.repeat([0, 1], [len(fast.m), 9 * len(fast.m)]),
        )
        middle = fit_gemm(both, BF16, DEVICE).parameters.efficiency
        assert slow * 1.02 < middle < TRUE.efficiency * 0.99

    def test_borrowed_constants_err_by_their_distance(self):
        borrowed = TRUE._replace(efficiency=TRUE.efficiency * 1.25)
        big, _ = transfer_errors(products(), BF16, DEVICE, borrowed)
        assert big == pytest.approx(0.2, abs=0.02)


class TestAttention:
    def test_exact_data_give_the_efficiency_back(self):
        """The cache write that serving adds is not blamed on the core."""
        fit = fit_attention(cores(), DEVICE, TRUE, rates().exponent_columns)
        assert fit.efficiency == pytest.approx(0.5, rel=1e-4)
        assert fit.error < 1e-4
        assert fit.n == int(training_like(cores()).sum())
        assert dict(fit.by_seq)[4096] == pytest.approx(0.5, rel=1e-4)
        assert dict(fit.by_head_dim)[64] == pytest.approx(0.5, rel=1e-4)

    def test_prediction_splits_into_core_and_the_rest(self):
        seconds, core = attention_seconds(cores(), DEVICE, TRUE, rates().exponent_columns, 0.5)
        np.testing.assert_allclose(seconds, cores().seconds, rtol=1e-12)
        assert (core < seconds).all()


class TestHeldOut:
    def test_a_shape_is_on_one_side_wherever_it_appears(self):
        """Two frameworks measured the same shapes: one table must not teach the answers of the other."""
        table = products()
        once = robust.held_out(table.m, table.n, table.k)
        twice = robust.held_out(*(np.tile(getattr(table, name), 2) for name in "mnk"))
        np.testing.assert_array_equal(np.tile(once, 2), twice)

    def test_the_two_sides_are_about_equal_at_every_size(self):
        table = products()
        chosen = robust.held_out(table.m, table.n, table.k)
        for size in np.unique(table.m):
            assert 0.3 < chosen[table.m == size].mean() < 0.7


class TestProfiles:
    def test_blocks_priced_at_a_known_efficiency_give_it_back(self):
        """The scale is found through the product's own lowering."""
        blocks = [profiles.BlockTime("opt-350m-sailor", 2048, size, 1.0) for size in (1, 2, 4)]
        seconds = profiles.block_seconds(blocks, "V100-SXM2-16GB", "fp32", 0.6)
        measured = [replace(block, seconds=float(time)) for block, time in zip(blocks, seconds, strict=True)]
        fit = profiles.fit_scale(measured, "V100-SXM2-16GB", "fp32")
        assert fit.efficiency == pytest.approx(0.6, rel=1e-3)
        assert fit.error < 1e-3
        assert fit.sigma >= profiles.LEAST_SPREAD * fit.efficiency

    def test_two_models_of_different_width_tell_products_from_memory(self, monkeypatch):
        """Blocks priced at known shares of both rates give both back; one share alone fits them worse."""
        monkeypatch.setattr(profiles, "SHARES", (0.5, 0.6, 0.8))
        shapes = [("opt-350m-sailor", 4), ("gpt-neo-2.7b", 4)]
        blocks = [profiles.BlockTime(model, 2048, size, 1.0) for model, size in shapes]
        seconds = profiles.block_seconds(blocks, "A100-SXM4-80GB", "tf32", 0.7, 0.6)
        measured = [replace(block, seconds=float(time)) for block, time in zip(blocks, seconds, strict=True)]
        fit = profiles.fit_both(measured, "A100-SXM4-80GB", "tf32")
        assert (fit.efficiency, fit.memory) == (pytest.approx(0.7, rel=0.02), pytest.approx(0.6))
        assert profiles.fit_scale(measured, "A100-SXM4-80GB", "tf32").error > 0.02 > fit.error

    def test_the_rtx_2080_of_the_profiles_is_faster_than_that_device_can_be(self):
        """Why kinds.py reads the name as RTX-2080Ti: at its whole peak an RTX-2080 is much slower still."""
        blocks = profiles.read_profiles(shipped("traces") / "sailor/layer_profiles.csv", "RTX-2080")
        measured = np.array([block.seconds for block in blocks])
        assert (profiles.block_seconds(blocks, "RTX-2080", "fp32", 1.0) > 1.2 * measured).all()
        of_the_ti = profiles.block_seconds(blocks, "RTX-2080Ti", "fp32", 1.0)
        np.testing.assert_allclose(of_the_ti, measured, rtol=0.05)

    def test_a_kind_without_single_gpu_rows_is_named(self):
        with pytest.raises(BadInputError, match="no single-GPU rows of MI300X"):
            profiles.read_profiles(shipped("traces") / "sailor/layer_profiles.csv", "MI300X")


class TestRows:
    ROW = rows.EfficiencyRow("A", "bf16", "gemm", "1", "efficiency", 0.7, 0.07, 9, "measured somewhere", "")

    def test_siblings_inherit_with_a_wider_error_and_no_measurements(self):
        (row,) = rows.inherited([self.ROW], [kinds.Sibling("B", "A", 0.10)])
        assert (row.gpu, row.value, row.n) == ("B", 0.7, 0)
        assert row.sigma / row.value == pytest.approx(math.hypot(0.1, 0.1))
        assert row.source.startswith(INHERITED)

    def test_the_file_loads_and_inherited_kinds_do_not_count_as_measured(self, tmp_path):
        sibling = replace(self.ROW, gpu="A30", source=f"{INHERITED} from A40")
        single = replace(self.ROW, gpu="T4", dtype="fp32")
        own = replace(self.ROW, gpu="A40", value=0.654)
        (tmp_path / "efficiency").mkdir()
        (tmp_path / "efficiency" / "kernels.csv").write_text(rows.csv_text([own, sibling, single]))
        database = Hwdb.load([tmp_path])
        assert database.efficiency(database.gpu("A40"), "bf16").gemm_efficiency.value == 0.654
        assert database.gpu("A40").measured
        assert not database.gpu("A30").measured
        assert not database.gpu("T4").measured  # an fp32 figure says nothing of tensor cores

    def test_a_second_table_moves_a_row_half_way_and_widens_it(self):
        """Half way of logarithms; one standard error reaches either table."""
        row = rows.between(replace(self.ROW, value=0.64, sigma=0.0), kinds.Sustained(0.49, "elsewhere"))
        assert row.value == pytest.approx(0.56) and row.source.endswith("; elsewhere")
        assert row.value * math.exp(row.sigma / row.value) == pytest.approx(0.64, rel=1e-9)

    def test_every_kind_named_exists_and_none_is_both_measured_and_a_sibling(self):
        known = set(Hwdb.load().gpu_names())
        profiled = {kind.name for kind in kinds.PROFILED.values()}
        # Tables and profiles measure other kernels: a kind may have one at first hand and inherit the other.
        for found, measured in (
            (kinds.SIBLINGS, set(kinds.SYSTEMS.values())),
            (kinds.PROFILED_SIBLINGS, profiled),
        ):
            siblings = [sibling.name for sibling in found]
            assert {*siblings, *measured} <= known
            assert len(siblings) == len(set(siblings))
            assert not measured & set(siblings)
            assert {sibling.of for sibling in found} <= measured


class TestPackage:
    def test_its_absence_says_what_to_install(self, monkeypatch, tmp_path, capsys):
        monkeypatch.setattr(tables, "PACKAGE", "no-such-package-of-tables")
        assert main([str(tmp_path)]) == 2
        assert "pip install 'tangram-sim[calibrate]'" in capsys.readouterr().err
        assert not list(tmp_path.iterdir())

    def test_another_version_is_refused(self, monkeypatch):
        """The rows are pinned: another version's tables would change them silently."""
        monkeypatch.setattr(tables, "version", lambda _: "0.0.1")
        with pytest.raises(BadInputError, match=r"0\.0\.1 is installed; calibration is pinned to"):
            tables.folder()


def _have_tables() -> bool:
    try:
        tables.folder()
    except BadInputError:
        return False
    return True


needs_tables = pytest.mark.skipif(
    not _have_tables(), reason="the measured tables are absent: pip install 'tangram-sim[calibrate]'"
)


@needs_tables
class TestMeasuredTables:
    def test_h100_meets_the_targets_on_shapes_held_out(self):
        """Median error 7 % on training shapes and 15 % on all, at 16 and 8 bits."""
        fits = rows.fit_kind(Hwdb.load(), "h100_sxm")
        for dtype in ("bfloat16", "fp8"):
            assert fits.gemm[dtype].big_error <= 0.07
            assert fits.gemm[dtype].error <= 0.15
        assert fits.attention.error <= 0.10

    @pytest.mark.slow
    def test_the_shipped_rows_are_what_calibration_writes(self, tmp_path):
        """No row of kernels.csv was typed by hand."""
        committed = shipped("hwdb") / "efficiency" / "kernels.csv"
        if not committed.exists():
            pytest.skip("no kernels.csv is shipped yet: make calibrate")
        command = [sys.executable, "-m", "tangram_validate.calibration", str(tmp_path), "--quiet"]
        subprocess.run(command, check=True, cwd=ROOT)
        assert (tmp_path / "kernels.csv").read_bytes() == committed.read_bytes()
        with committed.open(newline="") as stream:
            assert {row["date"] for row in csv.DictReader(stream)} == {rows.FITTED}
