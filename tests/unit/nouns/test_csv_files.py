"""Tables that are no CSV are named, whichever reader meets them."""

import gzip
from pathlib import Path

import pytest

from tangram_sim.datafiles import read_csv
from tangram_sim.errors import BadInputError
from tangram_sim.export import schedule_csv
from tangram_sim.reliability.traces.reading import read_trace
from tangram_sim.reliability.traces.tables import read_table

HEADER = "step,dp,stage,op,seq,start_us,dur_us\n"
ENDLESS = "9" * 200_000


def test_a_cell_without_an_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "endless.csv"
    path.write_text(f"{HEADER}0,0,0,F,0,0,{ENDLESS}\n")
    with pytest.raises(BadInputError, match=r"endless\.csv: not CSV: field larger"):
        read_csv(path)
    with pytest.raises(BadInputError, match=r"endless\.csv: line 2 is .*\.\.\.") as refused:
        read_table(path)
    assert len(str(refused.value)) < 500
    with pytest.raises(BadInputError, match=r"schedule\.csv: not CSV"):
        schedule_csv.read(f"F0,{ENDLESS}")


def test_a_carriage_return_alone_ends_a_line_of_a_trace(tmp_path: Path) -> None:
    """Found by fuzzing."""
    path = tmp_path / "trace.csv"
    path.write_text(f"{HEADER}0,0,0,F,0,0\r5,10\n", newline="")
    with pytest.raises(BadInputError, match=r"trace\.csv: line 2 is '0,0,0,F,0,0,'"):
        read_table(path)


def test_a_damaged_archive_of_a_trace_is_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress((HEADER + "0,0,0,F,0,0,10\n" * 1000).encode(), mtime=0))
    for place in range(10, 50):
        damaged = packed.copy()
        damaged[place] ^= 255
        (tmp_path / "trace.csv.gz").write_bytes(damaged)
        for read in (read_table, lambda path: read_trace([path])):
            with pytest.raises(BadInputError, match=r"trace\.csv\.gz"):
                read(tmp_path / "trace.csv.gz")


def test_a_profile_nested_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text("[" * 100_000)
    with pytest.raises(BadInputError, match=r"rank0\.json: not JSON that can be read: nested too deeply"):
        read_trace([tmp_path / "rank0.json"])
