"""Mutants judged in forks of one collected run: a fault inside a function is put into its code object.

Importing the package and collecting the tests of a room takes longer than most tests that run one line, so
both happen once. The file is changed too, for tests that start a command. A fault that acts while a module is
imported, or in a compiled kernel, cannot be judged so.
"""

import gc
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from tests.mutants.changes import Change
from tests.mutants.kernels import is_compiled
from tests.mutants.ordering import TIMES, Ordering
from tests.mutants.recording import Record

_MORE_CPU_S = 10.0  # what a test may take beside a multiple of its usual time
_WALL = 20.0  # times as much by the clock, on a busy machine, where a mutant waits for ever

Key = tuple[str, int]  # name, line


class InPlace:
    """A pytest plugin that judges changes where the tests would have been run.

    `near`: only tests that were seen to run a change's lines are asked. `tell` gets the number of each change
    and whether it was killed; None where it cannot be judged here.
    """

    def __init__(
        self,
        changes: Sequence[tuple[Path, Change]],
        record: Record,
        tell: Callable[[int, bool | None], None],
        *,
        near: bool,
    ) -> None:
        self.changes, self.record, self.tell, self.near = changes, record, tell, near

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """A fork of this process for each change."""
        gc.unfreeze()  # what is frozen is not listed
        functions = _functions()
        gc.freeze()
        for number, (path, change) in enumerate(self.changes):
            self.tell(number, self._judged(session, functions[str(path)], path, change))
        return True

    def _judged(
        self,
        session: pytest.Session,
        functions: dict[Key, list[FunctionType]],
        path: Path,
        change: Change,
    ) -> bool | None:
        text, stamp = path.read_text(encoding="utf-8"), path.stat()
        codes = {} if is_compiled(text) else _changed(text, path, change)
        if not codes or not all(functions[key] for key in codes if "<locals>" not in key[0]):
            return None
        first = self.record.running(path, change)
        if self.near and not first:
            return False

        def judge() -> int:
            for key, code in codes.items():
                for function in functions[key]:
                    function.__code__ = code
            ordering = Ordering(self.record.seconds, first, _MORE_CPU_S, alone=self.near)
            ordering.pytest_collection_modifyitems(session.items)
            return _run(session, ordering)

        try:
            path.write_text(change.applied(text), encoding="utf-8")
            return forked(judge, TIMES * sum(self.record.seconds.values()) + _MORE_CPU_S) != 0
        finally:
            path.write_text(text, encoding="utf-8")
            os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def _run(session: pytest.Session, plugin: object) -> int:
    """1 where a test fails, at the first one; `plugin` is in force."""
    session.config.pluginmanager.register(plugin)
    for item, following in zip(session.items, [*session.items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return 1
    return 0


def forked(work: Callable[[], int], limit_cpu_s: float) -> int:
    """The exit code of a fork that does `work` in a session of its own; not 0 where it takes too long."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            code = work()
        finally:
            os._exit(code)
    gives_up = time.monotonic() + _WALL * limit_cpu_s
    while time.monotonic() < gives_up:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 124


def _functions() -> dict[str, dict[Key, list[FunctionType]]]:
    """All functions that live, by file, name and line."""
    found: dict[str, dict[Key, list[FunctionType]]] = defaultdict(lambda: defaultdict(list))
    for item in gc.get_objects():
        if type(item) is FunctionType:
            code = item.__code__
            found[code.co_filename][code.co_qualname, code.co_firstlineno].append(item)
    return found


def _changed(text: str, path: Path, change: Change) -> dict[Key, CodeType]:
    """Codes of the functions that hold a change, by name and line; {} where it acts at import."""
    was = dict(_codes(compile(text, str(path), "exec")))
    now = dict(_codes(compile(change.applied(text), str(path), "exec")))
    if was.keys() != now.keys():
        return {}
    found = {}
    for key, code in now.items():
        outside = code.co_flags & 2 == 0  # no function: a module, a class
        if _own(code) != _own(was[key]) and (outside or code.co_freevars != was[key].co_freevars):
            return {}
        if code != was[key] and not outside:
            found[key] = code
    return found


def _codes(code: CodeType) -> Iterator[tuple[Key, CodeType]]:
    yield (code.co_qualname, code.co_firstlineno), code
    for item in code.co_consts:
        if isinstance(item, CodeType):
            yield from _codes(item)


def _own(code: CodeType) -> tuple[object, ...]:
    """What a code does itself, its inner functions left out, wherever it stands."""
    constants = [repr(item) for item in code.co_consts if not isinstance(item, CodeType)]
    return code.co_code, constants, code.co_names, code.co_varnames
