"""Compiled code on disk: kept where it can be, never run after what it contains has changed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tangram_sim.keeping import made_private
from tests.places import ROOT

_CALLED = """
from typing import NamedTuple
from tangram_sim.compiling import njit
from toy.sizes import LEAST
SECOND = 2
class Pair(NamedTuple):
    one: int
    other: int
@njit(cache=True)
def called(a):
    return a + 1 + LEAST
"""
_CALLS = """
from tangram_sim.compiling import njit
from toy.called import SECOND, Pair, called
@njit(cache=True)
def calls(a):
    return called(a) * SECOND
@njit(cache=True)
def first(a):
    return Pair(a, 2 * a).one
"""
_CALLS_AGAIN = """
from tangram_sim.compiling import njit
from toy.calls import calls
@njit(cache=True)
def again(a):
    return calls(a)
if __name__ == "__main__":
    import toy.again as known
    from toy.calls import first
    print(known.again(10), first(10))
    print(sum(known.again.stats.cache_hits.values()), sum(first.stats.cache_hits.values()))
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A package of three modules, each compiled with code of the one before."""
    folder = tmp_path / "toy"
    folder.mkdir()
    texts = {
        "__init__": "",
        "sizes": "LEAST = 0\n",
        "called": _CALLED,
        "calls": _CALLS,
        "again": _CALLS_AGAIN,
    }
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def _run(
    toy: Path, line: tuple[str, ...] = ("-m", "toy.again"), **more: str
) -> subprocess.CompletedProcess[str]:
    """Python in the toy's place, where NUMBA_CACHE_DIR names nothing; bytecode is not kept."""
    known = {
        name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")
    }
    known |= {"PYTHONPATH": f"{ROOT}:{toy.parent}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *line], capture_output=True, text=True, cwd=toy.parent, env=known | more, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def _nowhere(toy: Path) -> dict[str, str]:
    """Neither the package's folder nor the user's can be written, whoever asks: files stand in the way."""
    (toy / "__pycache__").write_text("")
    home = toy.parent / "home"
    home.write_text("")
    return {"HOME": str(home), "TMPDIR": str(toy.parent)}


def test_compiled_code_never_outlives_what_it_contains(toy: Path):
    first = _run(toy).stdout.split()
    assert first == ["22", "10", "0", "0"]
    assert _run(toy).stdout.split() == ["22", "10", "1", "1"]  # kept
    changes = [
        ("called.py", "a + 1", "a + 2", ["24", "10"]),  # a function called
        ("sizes.py", "= 0", "= 1", ["26", "10"]),  # a constant, two modules away from who calls
        ("called.py", "SECOND = 2", "SECOND = 3", ["39", "10"]),
        ("called.py", "one: int\n    other: int", "other: int\n    one: int", ["39", "20"]),
    ]
    for name, old, new, printed in changes:
        _edit(toy / name, old, new)
        assert _run(toy).stdout.split() == [*printed, "0", "0"], (name, new)


def test_what_compiled_code_does_not_contain_may_change(toy: Path):
    _run(toy)
    (toy / "__init__.py").write_text("NOTHING = 1\n")
    assert _run(toy).stdout.split() == ["22", "10", "1", "1"]


def test_where_no_usual_folder_can_be_written_code_is_kept_among_temporary_files(toy: Path):
    nowhere = _nowhere(toy)
    done = _run(toy, **nowhere)
    assert done.stdout.split() == ["22", "10", "0", "0"]
    assert not done.stderr
    kept = toy.parent / f"tangram-sim-{os.getuid()}"
    assert kept.stat().st_mode & 0o777 == 0o700
    assert _run(toy, **nowhere).stdout.split() == ["22", "10", "1", "1"]


@pytest.mark.parametrize("mode", [0o600, 0o777])
def test_a_temporary_folder_that_others_can_write_is_left_alone(toy: Path, mode: int):
    """Whoever writes there runs code here; a file stands for a folder of somebody else."""
    nowhere = _nowhere(toy)
    kept = toy.parent / f"tangram-sim-{os.getuid()}"
    if mode == 0o600:
        kept.write_text("")
    else:
        kept.mkdir()
    kept.chmod(mode)
    done = _run(toy, **nowhere)
    assert done.stdout.split() == ["22", "10", "0", "0"]
    assert done.stderr.count("NUMBA_CACHE_DIR") == 1
    assert mode == 0o600 or not list(kept.iterdir())


def test_a_link_is_no_private_folder(tmp_path: Path):
    (tmp_path / "there").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "there")
    assert made_private(tmp_path / "there")
    assert not made_private(tmp_path / "link")


def test_a_real_loop_runs_where_no_usual_folder_can_be_written(toy: Path):
    """This package itself, copied: it ended with `cannot cache function`."""
    package = toy.parent / "tangram_sim"
    for path in sorted((ROOT / "tangram_sim").rglob("*.py[i]")) + sorted(
        (ROOT / "tangram_sim").rglob("*.py")
    ):
        copied = package / path.relative_to(ROOT / "tangram_sim")
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_bytes(path.read_bytes())
    for folder in {path.parent for path in package.rglob("*.py")}:
        (folder / "__pycache__").write_text("")
    code = (
        "import tangram_sim; from tangram_sim.planners.tangram.composition import rest_kernels; "
        "print(tangram_sim.__file__, rest_kernels.still_to_come.py_func.__name__)"
    )
    done = _run(toy, ("-c", code), **_nowhere(toy), PYTHONPATH=str(toy.parent))
    assert done.stdout.split() == [str(package / "__init__.py"), "still_to_come"]


_FULL = """
import errno, sys
from numba.core.caching import IndexDataCacheFile
def full(*given):
    raise OSError(errno.EDQUOT, "Disk quota exceeded")
IndexDataCacheFile.save = full
from toy.again import again
print(again(10))
"""
_OTHER_NUMBA = """
import numba.core.cpu, numba.core.caching, sys
for one in numba.core.cpu.CPUTargetOptions.__mro__:
    if "_nrt" in vars(one):
        del one._nrt
moved = "numba.np.linalg", "numba.np.arraymath"  # from where we import them
sys.modules.update(dict.fromkeys(moved))
import tangram_sim.compiling
for name in moved:
    del sys.modules[name]
class Other(numba.core.caching.FunctionCache):
    def __init__(self, function):
        super().__init__(function)
        del self._cache_file
import numba.core.dispatcher
numba.core.dispatcher.FunctionCache = Other
from toy.again import again
from tangram_sim.serving.compiled import compiled
@compiled
def one(a):
    return a + 1
print(one(1), again(10), again.stats.cache_path)
"""


def test_a_full_disk_ends_no_plan(toy: Path):
    assert _run(toy, ("-c", _FULL)).stdout.split() == ["22"]


def test_another_numba_without_our_private_names_keeps_nothing_and_compiles(toy: Path):
    assert _run(toy, ("-c", _OTHER_NUMBA)).stdout.split() == ["2", "22", "None"]
