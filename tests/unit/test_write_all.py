"""Several files are written, or none: a disk that fills up half-way changes nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from tangram_sim.datafiles import write_all
from tangram_sim.errors import BadInputError
from tests.commands import files, tangram

_LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)
from tangram_sim.cli.main import main
main()
"""


def test_what_was_there_stays_where_one_file_cannot_be_written(tmp_path: Path) -> None:
    old, blocked = tmp_path / "old.txt", tmp_path / "folder"
    old.write_text("before")
    blocked.mkdir()
    with pytest.raises(BadInputError, match="folder: cannot be written"):
        write_all({old: "after", tmp_path / "new" / "deep" / "file": "text", blocked: "text"})
    assert old.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "old.txt"]
    write_all({old: "after", tmp_path / "new" / "deep" / "file": "text"})
    assert (old.read_text(), (tmp_path / "new" / "deep" / "file").read_text()) == ("after", "text")


@pytest.mark.skipif(sys.platform == "win32", reason="limits of files are those of POSIX")
def test_a_disk_that_fills_up_half_way_leaves_no_half_of_an_export(tmp_path: Path) -> None:
    model, _ = files(tmp_path)
    plan, whole, cut = tmp_path / "plan.json", tmp_path / "whole", tmp_path / "cut"
    layout = ("--tp", 2, "--pp", 1, "--dp", 2, "--global-batch", 8)
    assert tangram("estimate", model, "A100-SXM4-80GBx4:1", *layout, "-o", plan).code == 0
    assert tangram("export", plan, "--to", "megatron", "-o", whole).code == 0
    sizes = sorted(path.stat().st_size for path in whole.iterdir())
    assert len(sizes) > 1
    room = (sizes[0] + sizes[-1]) // 2  # some of the files fit, others do not
    words = [str(room), "export", str(plan), "--to", "megatron", "-o", str(cut)]
    ended = subprocess.run(
        [sys.executable, "-B", "-c", _LIMITED, *words], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"error: {cut}")
    assert "cannot be written" in ended.stderr
    assert not cut.exists()
