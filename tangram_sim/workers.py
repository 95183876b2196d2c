"""Worker processes that joblib starts for a search: they end silently with their parent process."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

LOOK_S = 0.2  # between two looks whether the parent is still there


@contextmanager
def ending_with_parent() -> Iterator[None]:
    """Context for `Parallel` calls: joblib's own workers (loky) end with this process in any case.

    Backends that the caller has set (Dask, threads) are left as they are. Ctrl-C is held back while workers
    start, so that none dies during its imports with a traceback; it takes effect on leaving the context.
    """
    from joblib import parallel_config
    from joblib.externals.loky.backend import resource_tracker as tracker_of_loky
    from joblib.parallel import get_active_backend

    if os.name == "nt" or type(get_active_backend()[0]).__name__ != "LokyBackend":
        yield
        return
    # These unblock Ctrl-C where they have to be started first.
    resource_tracker.ensure_running()
    tracker_of_loky.ensure_running()
    with parallel_config(backend="loky", initializer=_settle, initargs=(os.getpid(),)):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def worker_deaths() -> tuple[type[Exception], ...]:
    """What loky, and Dask where it is in use, raise when workers die (Dask: again and again)."""
    from joblib.externals.loky.process_executor import BrokenProcessPool

    if "distributed" not in sys.modules:
        return (BrokenProcessPool,)
    from distributed import KilledWorker

    return BrokenProcessPool, KilledWorker


def _settle(parent: int) -> None:
    """In a worker, before its first piece of work: end at once on Ctrl-C, and when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os.kill(os.getpid(), signal.SIGKILL)
