"""Worker processes end with the search that started them, and say nothing of it."""

import signal
import sys
from pathlib import Path

import pytest

from benchmarks.orphans import killed


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are told by /proc")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_workers_and_their_folders_go_with_the_search(tmp_path: Path, how: signal.Signals) -> None:
    pytest.importorskip("joblib", reason="joblib comes with the extra `sweep`")
    found = killed("plan", how, None, tmp_path / "search")
    assert found.workers >= 2, "it was ended while workers ran"
    assert (found.orphans, found.folders, found.traceback) == (0, (), False)
