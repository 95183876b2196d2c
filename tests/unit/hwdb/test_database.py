"""The hardware database: names, units, overlays and their errors, efficiency lookup, the digest."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from tangram_sim.clusters import Gpu, Link
from tangram_sim.datafiles import shipped
from tangram_sim.errors import BadInputError, UnknownNameError
from tangram_sim.hwdb import Hwdb
from tests.places import ROOT

EFFICIENCY_HEADER = "gpu,dtype,kernel,stack,version,parameter,value,sigma,n,source,date,note"


@pytest.fixture(scope="module")
def hwdb() -> Hwdb:
    return Hwdb.load()


def overlay(tmp_path: Path, **files: str) -> Hwdb:
    for name, text in files.items():
        path = tmp_path / ("efficiency/mine.csv" if name == "efficiency" else f"{name}.csv")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return Hwdb.load([tmp_path])


# names


def test_a_name_resolves_without_regard_to_case_and_separators(hwdb):
    expected = hwdb.gpu("A100-SXM4-80GB")
    for spelling in ("a100-sxm4-80gb", "A100 SXM4 80GB", "a100_sxm4/80gb", "A100SXM480GB"):
        assert hwdb.gpu(spelling) == expected


def test_every_shipped_alias_resolves_to_its_row(hwdb):
    with (shipped("hwdb") / "aliases.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) > 50
    find = {"gpu": hwdb.gpu, "link": hwdb.link, "node": hwdb.node}
    for row in rows:
        assert find[row["kind"]](row["alias"]).name == row["name"]


def test_every_shipped_row_is_readable_under_its_own_name_in_any_case(hwdb):
    for names, find in (
        (hwdb.gpu_names(), hwdb.gpu),
        (hwdb.link_names(), hwdb.link),
        (hwdb.node_names(), hwdb.node),
    ):
        for name in names:
            assert find(name).name == find(name.upper()).name == name


@pytest.mark.parametrize("given", ["A100-SXM4-88GB", "", "   ", "😀", "*"])
def test_an_unknown_name_is_an_error_in_words(hwdb, given):
    with pytest.raises(UnknownNameError, match="unknown GPU"):
        hwdb.gpu(given)


def test_an_unknown_name_shows_the_nearest(hwdb):
    with pytest.raises(UnknownNameError, match=r"Nearest: .*H100-SXM5-80GB"):
        hwdb.gpu("H100-SXM6-80GB")
    with pytest.raises(UnknownNameError, match=r"Nearest: .*NVLink4"):
        hwdb.link("NVLnk4")


def test_a_spelling_that_could_mean_two_rows_is_refused(tmp_path):
    db = overlay(tmp_path, aliases="alias,kind,name\nBig-One,gpu,T4\nBig One,gpu,L4\n")
    assert db.gpu("Big-One").name == "T4"
    with pytest.raises(BadInputError, match="may mean L4 or T4"):
        db.gpu("bigone")


# units


def test_figures_are_converted_to_si(hwdb):
    gpu = hwdb.gpu("A100-SXM4-80GB")
    assert gpu.peak_flop_per_s("bf16") == pytest.approx(312e12)
    assert gpu.memory_bytes == pytest.approx(80e9)
    assert gpu.memory_bytes_per_s == pytest.approx(2039e9)
    assert hwdb.link("NVLink3").bytes_per_s == pytest.approx(300e9)
    assert 1e-6 < hwdb.link("NVLink3").latency_s < 1e-4
    assert hwdb.node("p4d.24xlarge").nic_bytes_per_s == pytest.approx(400e9 / 8)


def test_a_dtype_without_units_has_no_peak(hwdb):
    assert hwdb.gpu("V100-SXM2-16GB").peak_flop_per_s("bf16") == 0.0
    assert "bf16" not in dict(hwdb.gpu("T4").peaks)


def test_a_bridged_node_joins_neighbouring_pairs_by_the_gpus_own_bridge(hwdb):
    node = hwdb.node("NC96ads_A100_v4")
    assert node.bridges == ((0, 1), (2, 3))
    assert node.bridge is not None
    assert node.bridge.kind == "nvlink-bridge"
    assert node.bridge.bytes_per_s > node.intra.bytes_per_s


# overlays


def test_an_overlay_changes_only_the_cells_it_gives_and_keeps_provenance(tmp_path, hwdb):
    db = overlay(tmp_path, gpus="name,memory_gb\nT4,15\n")
    assert db.gpu("T4").memory_bytes == pytest.approx(15e9)
    assert db.gpu("T4").peaks == hwdb.gpu("T4").peaks
    row = db.gpu_row("T4")
    assert row.origins["memory_gb"] == f"{tmp_path / 'gpus.csv'}, line 2"
    assert str(shipped("hwdb")) in row.origins["fp16_tflops"]


def test_the_last_overlay_wins(tmp_path):
    folders = []
    for index, memory in enumerate((15, 14)):
        folder = tmp_path / str(index)
        folder.mkdir()
        (folder / "gpus.csv").write_text(f"name,memory_gb\nT4,{memory}\n")
        folders.append(folder)
    assert Hwdb.load(folders).gpu("T4").memory_bytes == pytest.approx(14e9)
    assert Hwdb.load(folders[::-1]).gpu("T4").memory_bytes == pytest.approx(15e9)


def test_an_overlay_may_name_a_row_by_its_alias(tmp_path):
    db = overlay(tmp_path, nodes="name,nic_gbps\nStandard_NC24s_v3,48\n")
    assert db.node("NC24s_v3").nic_bytes_per_s == pytest.approx(6e9)
    assert "Standard_NC24s_v3" not in db.node_names()


def test_an_overlay_may_add_a_whole_gpu(tmp_path):
    columns = "name,vendor,architecture,form,year,bf16_tflops,memory_gb,memory_gb_per_s,power_w"
    columns += ",link,link_gb_per_s,source"
    db = overlay(tmp_path, gpus=f"{columns}\nX1,acme,X,PCIe,2027,1000,100,5000,500,NVLink4,450,made up\n")
    assert db.gpu("x1").peaks == (("bf16", 1e15),)
    # an unknown architecture falls back to the rows for any GPU
    assert 0 < db.efficiency(db.gpu("X1"), "bf16").gemm_efficiency.value <= 1


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("gpus", "name,memory_gb\nT5,15\n", ["line 2", "T5", "lacks", "vendor", "memory_gb_per_s"]),
        ("gpus", "name,memory_bg\nT4,15\n", ["line 1", "memory_bg", "Nearest: memory_gb"]),
        ("gpus", "name,memory_gb\nT4,nan\n", ["line 2", "column memory_gb", "nan", "finite"]),
        ("gpus", "name,memory_gb\nT4,inf\n", ["line 2", "column memory_gb", "inf"]),
        ("gpus", "name,memory_gb\nT4,-3\n", ["line 2", "column memory_gb", "-3"]),
        ("gpus", "name,memory_gb\nT4,0\n", ["line 2", "column memory_gb", "above zero"]),
        ("gpus", "name,memory_gb\nT4,16 GB\n", ["line 2", "column memory_gb", "16 GB", "without unit"]),
        ("gpus", "name,memory_gb\nT4,16\nL4,\nt4,15\n", ["line 4", "T4", "given twice", "line 2"]),
        ("gpus", "name,memory_gb\nT4\n", ["line 2", "1 cells", "2 columns"]),
        ("gpus", "name,name\nT4,T4\n", ["line 1", "'name'", "twice"]),
        ("gpus", "memory_gb\n15\n", ["line 2", "no name"]),
        ("gpus", "name,link\nT4,NVLnk3\n", ["line 2", "column link", "Nearest: NVLink3"]),
        ("gpus", "name,year\nT4,2018.5\n", ["line 2", "column year", "whole"]),
        ("gpus", 'name,note\nT4,"open\n', ["gpus.csv", "not CSV"]),
        ("links", "name,kind\nNVLink3,nvlnk\n", ["line 2", "column kind", "Nearest: nvlink"]),
        ("links", "name,gb_per_s\nNVLink3,0\n", ["line 2", "column gb_per_s"]),
        ("nodes", "name,price_date\np4d.24xlarge,yesterday\n", ["line 2", "price_date", "yesterday"]),
        ("nodes", "name,gpu\np4d.24xlarge,A1000\n", ["line 2", "column gpu", "A1000"]),
        ("aliases", "alias,kind,name\nfoo,gpu,T5\n", ["line 2", "T5"]),
        ("aliases", "alias,kind,name\nfoo,gpus,T4\n", ["line 2", "Nearest: gpu"]),
        ("aliases", "alias,kind\nfoo,gpu\n", ["line 2", "alias, kind and name"]),
        ("gpu", "name,memory_gb\nT4,15\n", ["gpu.csv", "Nearest: gpus.csv"]),
        (
            "efficiency",
            f"{EFFICIENCY_HEADER}\nT5,*,gemm,generic,,efficiency,0.5,0.1,0,x,,\n",
            ["line 2", "T5"],
        ),
        (
            "efficiency",
            f"{EFFICIENCY_HEADER}\narch:Amper,*,gemm,generic,,efficiency,0.5,0.1,0,x,,\n",
            ["Ampere"],
        ),
        (
            "efficiency",
            f"{EFFICIENCY_HEADER}\n*,*,gemm,generic,,efficiency,1.5,0.1,0,x,,\n",
            ["value", "1.5", "1"],
        ),
        (
            "efficiency",
            f"{EFFICIENCY_HEADER}\n*,*,gem,generic,,efficiency,0.5,0.1,0,x,,\n",
            ["'gem'", "gemm"],
        ),
        (
            "efficiency",
            f"{EFFICIENCY_HEADER}\n*,bf15,gemm,generic,,efficiency,.5,.1,0,x,,\n",
            ["bf15", "bf16"],
        ),
        ("efficiency", f"{EFFICIENCY_HEADER}\n*,*,gemm,generic,,efficiency,0.5,,0,x,,\n", ["lacks sigma"]),
        ("efficiency", f"{EFFICIENCY_HEADER}\nkind:pci,*,link,generic,,efficiency,.5,.1,0,x,,\n", ["pcie"]),
    ],
)
def test_a_mistake_in_an_overlay_is_named_by_file_line_and_column(tmp_path, file, text, words):
    with pytest.raises((BadInputError, UnknownNameError)) as caught:
        overlay(tmp_path, **{file: text})
    message = str(caught.value)
    assert str(tmp_path) in message
    for word in words:
        assert word in message


def test_an_overlay_folder_that_is_missing_or_holds_no_table_is_an_error(tmp_path):
    with pytest.raises(BadInputError, match="no such folder"):
        Hwdb.load([tmp_path / "nowhere"])
    with pytest.raises(BadInputError, match="holds no table"):
        Hwdb.load([tmp_path])
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadInputError, match="no such folder"):
        Hwdb.load([tmp_path / "file"])


def test_a_whole_copy_of_the_database_is_a_legal_overlay_and_changes_nothing(hwdb):
    copy = Hwdb.load([shipped("hwdb")])
    for name in hwdb.gpu_names():
        assert copy.gpu(name) == hwdb.gpu(name)


def test_a_byte_order_mark_and_blank_lines_do_not_matter(tmp_path):
    db = overlay(tmp_path, gpus="\ufeffname,memory_gb\r\n\r\n T4 , 15 \r\n,\r\n")
    assert db.gpu("T4").memory_bytes == pytest.approx(15e9)


# efficiency


def test_every_gpu_and_link_has_an_efficiency_within_physical_bounds(hwdb):
    for name in hwdb.gpu_names():
        gpu = hwdb.gpu(name)
        for dtype, _ in gpu.peaks:
            found = hwdb.efficiency(gpu, dtype)
            assert 0 < found.gemm_efficiency.value <= 1
            assert 0 < found.attention_efficiency.value <= 1
            assert 0 < found.memory_efficiency.value <= 1
            assert found.fused_attention.value in (0, 1)
            assert found.gemm_efficiency.sigma > 0
            assert found.usable_memory.value * gpu.memory_bytes > 4 * found.reserved_bytes.value
            assert 0 < found.kernel_launch_s.value < 1e-3
            assert 0 < found.dispatch_s_per_kernel.value < 1e-3
    for name in hwdb.link_names():
        value, sigma = hwdb.link_efficiency(hwdb.link(name))
        assert 0 < value <= 1
        assert sigma > 0


def test_the_shipped_rows_are_assumed_and_say_why():
    with (shipped("hwdb") / "efficiency" / "assumed.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {row["source"] for row in rows} == {"assumed"}
    assert all(row["note"] for row in rows)


def test_rows_that_rest_on_something_name_it():
    """Measured rows give their count and residual, datasheet rows their document."""
    widths = ("residual", "prior_share")  # rows that are themselves said to be errors, or shares of them
    for path in sorted((shipped("hwdb") / "efficiency").glob("*.csv")):
        with path.open(newline="") as stream:
            rows = [row for row in csv.DictReader(stream) if row["source"] != "assumed"]
        assert all(len(row["source"]) > 10 and row["date"] for row in rows), path.name
        counted = [row for row in rows if int(row["n"]) and not row["parameter"].startswith(widths)]
        assert all(float(row["sigma"]) > 0 for row in counted), path.name


def test_the_most_specific_row_wins_by_gpu_then_dtype_then_stack(tmp_path):
    rows = [
        ("*", "*", "generic", 0.11),
        ("*", "bf16", "megatron", 0.12),
        ("arch:Ampere", "*", "generic", 0.21),
        ("arch:Ampere", "fp16", "generic", 0.22),
        ("A30", "*", "generic", 0.31),
        ("A30", "*", "megatron", 0.32),
        ("A30", "bf16", "generic", 0.33),
    ]
    lines = [
        f"{gpu},{dtype},gemm,{stack},,efficiency,{value},0.01,0,assumed,,"
        for gpu, dtype, stack, value in rows
    ]
    db = overlay(tmp_path, efficiency="\n".join([EFFICIENCY_HEADER, *lines]) + "\n")

    def found(gpu: str, dtype: str, stack: str = "generic") -> float:
        return db.efficiency(db.gpu(gpu), dtype, stack).gemm_efficiency.value

    assert found("A30", "bf16") == 0.33
    assert found("A30", "bf16", "megatron") == 0.33  # dtype before stack
    assert found("A30", "fp16") == 0.31  # gpu before dtype
    assert found("A30", "fp16", "megatron") == 0.32
    assert found("A40", "fp16") == 0.22
    assert found("A40", "bf16", "megatron") == 0.21  # architecture before stack


def test_a_measured_row_beats_an_assumed_one_and_marks_the_gpu_measured(tmp_path, hwdb):
    lines = [
        "A30,*,gemm,generic,2.1,efficiency,0.66,0.01,120,bench run,2026-01-02,",
        "A30,*,gemm,generic,,efficiency,0.30,0.01,0,assumed,,",
        "A30,*,gemm,generic,2.0,efficiency,0.60,0.01,120,bench run,2025-01-02,",
    ]
    assert not hwdb.gpu("A30").measured
    db = overlay(tmp_path, efficiency="\n".join([EFFICIENCY_HEADER, *lines]) + "\n")
    assert db.efficiency(db.gpu("A30"), "bf16").gemm_efficiency == (0.66, 0.01)
    assert db.gpu("A30").measured
    assert not db.gpu("A40").measured


def test_an_unknown_dtype_is_an_error(hwdb):
    with pytest.raises(UnknownNameError, match="bf16"):
        hwdb.efficiency(hwdb.gpu("T4"), "bf61")


def test_a_mixed_gpu_has_the_worst_members_figures(hwdb):
    a100, t4 = hwdb.gpu("A100-SXM4-80GB"), hwdb.gpu("T4")
    mixed = Gpu("A100-SXM4-80GB+T4", "nvidia", "Ampere", t4.peaks, t4.memory_bytes, t4.memory_bytes_per_s)
    found = hwdb.efficiency(mixed, "fp16")
    worst = hwdb.efficiency(t4, "fp16")
    assert hwdb.efficiency(a100, "fp16").gemm_efficiency > worst.gemm_efficiency
    assert found.gemm_efficiency == worst.gemm_efficiency
    assert found.fused_attention.value == 0


def test_a_link_row_beats_its_kind(tmp_path):
    line = "link:NVLink3,*,link,generic,,efficiency,0.42,0.01,0,assumed,,"
    db = overlay(tmp_path, efficiency=f"{EFFICIENCY_HEADER}\n{line}\n")
    assert db.link_efficiency(db.link("NVLink3")).value == 0.42
    assert db.link_efficiency(db.link("NVLink4")).value != 0.42
    unknown = Link("my-fabric", "nvlink", 1e9, 1e-6)
    assert db.link_efficiency(unknown) == db.link_efficiency(db.link("NVLink4"))


# speed


def test_loading_brings_no_heavy_import():
    code = (
        "import sys; from tangram_sim.hwdb import Hwdb; Hwdb.load();"
        "print([m for m in ('pandas', 'numpy', 'pydantic', 'yaml', 'scipy') if m in sys.modules])"
    )
    environment = {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"
