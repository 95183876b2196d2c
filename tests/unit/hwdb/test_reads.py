"""Which rows a result read: an explicit set, and its fingerprint."""

import subprocess
import sys
from pathlib import Path

from tangram_sim.hwdb import Hwdb, ReadSet
from tests.places import ROOT

HWDB = Hwdb.load()


def read(hwdb: Hwdb, *wanted: tuple[str, str]) -> ReadSet:
    """What asking for these rows reads."""
    reads = ReadSet()
    through = hwdb.read_into(reads)
    for table, name in wanted:
        getattr(through, table)(name)
    return reads


def test_the_digest_depends_on_rows_read_and_not_on_their_order() -> None:
    read_set = read(HWDB, ("gpu", "T4"), ("link", "NVLink3"))
    two = read(HWDB, ("link", "NVLink3"), ("gpu", "t4"), ("gpu", "T4"))
    three = read(HWDB, ("gpu", "T4"))
    assert read_set.digest() == two.digest() != three.digest()
    assert len(read_set.digest()) == 16
    int(read_set.digest(), 16)


def test_looking_at_a_row_is_not_reading_it() -> None:
    assert read(HWDB, ("gpu_row", "T4")).rows() == ()


def test_a_set_counts_what_is_read_through_it_and_nothing_else() -> None:
    """What was looked up before is read again; another reader of the same tables does not show."""
    HWDB.efficiency(HWDB.gpu("T4"), "fp16")
    reads, beside = ReadSet(), ReadSet()
    through = HWDB.read_into(reads)
    through.efficiency(through.gpu("T4"), "fp16")
    HWDB.read_into(beside).gpu("V100-PCIe-16GB")
    HWDB.gpu("A100-SXM4-40GB")
    assert {row.name for row in reads.rows() if row.table == "gpus"} == {"T4"}
    assert {row["kernel"] for row in reads.rows() if row.table == "efficiency"} >= {"gemm", "attention"}
    assert [row.name for row in beside.rows()] == ["V100-PCIe-16GB"]


def test_the_digest_follows_figures_and_ignores_prose_and_spelling_of_numbers(tmp_path: Path) -> None:
    def digest(folder: str, text: str) -> str:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "gpus.csv").write_text(text)
        return read(Hwdb.load([tmp_path / folder]), ("gpu", "T4")).digest()

    base = read(HWDB, ("gpu", "T4")).digest()
    assert digest("a", "name,note\nT4,another note\n") == base
    assert digest("b", "name,memory_gb\nT4,16.0\n") == base
    assert digest("c", "name,memory_gb\nT4,15\n") != base


def test_the_digest_is_the_same_under_any_hash_seed() -> None:
    code = (
        "from tangram_sim.hwdb import Hwdb, ReadSet; r = ReadSet(); h = Hwdb.load().read_into(r);"
        "[h.efficiency(h.node(n).gpu, 'fp16') for n in ('p4d', 'NC24s_v3')]; print(r.digest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
