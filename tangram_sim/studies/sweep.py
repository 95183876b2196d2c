"""Sweeps: independent pieces of work over all cores, with answers cached on disk by what they depend on.

A repeated or interrupted sweep resumes: answers are written one by one, each file whole or not at all. The
key of an answer is a digest of its inputs (model, cluster, job, options, all rows of the hwdb); the folder is
that of this package (version and digest of its source), so that a changed row or program never meets an old
answer. Each file holds a digest over key, package and answer: a damaged or edited answer is computed again,
with a warning.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from multiprocessing import TimeoutError as NoAnswerInTime
from pathlib import Path
from typing import Any, TypeVar

from tangram_sim.datafiles import parse_json, write_whole
from tangram_sim.digests import ChangedFileWarning, content_key
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.keeping import drop_oldest
from tangram_sim.memory_limit import bytes_of
from tangram_sim.planners.deadline import Deadline
from tangram_sim.studies.dask_workers import dask_client, dask_threads
from tangram_sim.version import __version__
from tangram_sim.workers import ending_with_parent, worker_deaths

Item = TypeVar("Item")
Answer = dict[str, Any]  # what JSON can hold
Report = Callable[[int, int, str], None]
MOST_BYTES = 1 << 30  # of all answers on disk; TANGRAM_CACHE_LIMIT sets another bound
MOST_PER_CORE = 4  # processes for each core: more only wait and take memory
STOPPED = "stopped"  # an answer with this key was cut short by a deadline: true of this run only, never kept
LATE_S = 0.7  # what other processes may take beyond the deadline to send their best so far


@cache
def package_label() -> str:
    """Version of the package with a digest of its source: answers of other code are not reused."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).resolve().parent.parent.rglob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return f"{__version__}-{digest.hexdigest()[:8]}"


def default_folder() -> Path:
    """TANGRAM_CACHE, else `tangram-sim` in the user's cache folder (XDG_CACHE_HOME or ~/.cache)."""
    own = os.environ.get("TANGRAM_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tangram-sim"


def cache_limit_bytes() -> float:
    """Bytes that answers on disk may take: TANGRAM_CACHE_LIMIT (`2G`), else 1 GiB. Raises BadInputError."""
    own = os.environ.get("TANGRAM_CACHE_LIMIT")
    return bytes_of(own) if own else float(MOST_BYTES)


def _digest(key: str, answer: Answer) -> str:
    """Digest of an answer, its key and this package's source; an answer with another digest is ignored."""
    return content_key([package_label(), key, json.dumps(answer, allow_nan=False)])


class Cache:
    """Cache of answers on disk. Unreadable or unwritable files cause notes, never errors."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._own = folder, folder / package_label()
        self.notes: list[str] = []
        self._broken = False
        try:
            others = sorted(path.name for path in folder.iterdir() if path.is_dir() and path != self._own)
        except OSError:  # no cache yet, or no folder: the first write says so
            others = []
        # Answers of other versions go before this one's.
        kept = folder.glob("*/[0-9a-f][0-9a-f]/*.json")
        drop_oldest(kept, cache_limit_bytes(), lambda path: self._own in path.parents)
        if others:
            shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
            self.notes.append(
                f"{folder}: answers of other versions ignored ({shown}); this is {package_label()}"
            )

    def _path(self, key: str) -> Path:
        return self._own / key[:2] / f"{key}.json"

    def get(self, key: str) -> Answer | None:
        """The answer kept under `key`; None when there is none that can be read."""
        path = self._path(key)
        try:
            kept = parse_json(path.read_text(encoding="utf-8"), path)
            if not isinstance(kept["answer"], dict) or kept["digest"] != _digest(key, kept["answer"]):
                raise ValueError("not what was written")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, BadInputError, ValueError, KeyError, TypeError) as error:
            words = f"{path}: damaged answer ignored ({type(error).__name__}); it is made anew"
            warnings.warn(words, ChangedFileWarning, stacklevel=2)
            return None
        with suppress(OSError):  # used now: the last to be deleted
            os.utime(path)
        answer: Answer = kept["answer"]
        return answer

    def put(self, key: str, answer: Answer) -> None:
        """Store an answer; after the first failure (a full disk) nothing more is written, with a note."""
        if self._broken:
            return
        try:
            kept = {"digest": _digest(key, answer), "answer": answer}
            write_whole(self._path(key), json.dumps(kept, allow_nan=False))
        except BadInputError as error:
            self._broken = True
            self.notes.append(
                f"the sweep goes on without its cache: {error}. Answers kept so far stay; later ones are in "
                "this run only: make room, or name another folder with `cache=`"
            )


def _too_many(jobs: int) -> tuple[str, ...]:
    """A note if `jobs` exceeds the number of processes that this machine's cores can use."""
    most = MOST_PER_CORE * cores()
    return (f"{jobs} processes asked for, {most} used: {MOST_PER_CORE} a core",) if jobs > most else ()


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Sweep:
    """Runs work over items: from the cache where it can, else on `jobs` processes (0: all cores).

    More than one process needs joblib, which comes with the extra `sweep`; its backend is loky unless the
    caller has set another with `joblib.parallel_config`. `dask` is the address of a Dask scheduler whose
    workers do the work instead; `jobs` 0 then means as many at once as they have threads.
    """

    def __init__(
        self,
        cache: Cache | None = None,
        jobs: int = 0,
        report: Report | None = None,
        *,
        dask: str | None = None,
    ) -> None:
        if jobs < 0:
            raise BadInputError(f"`jobs={jobs}`: give a number of processes, or 0 for all cores")
        has_joblib = find_spec("joblib") is not None
        if jobs > 1 and not has_joblib:
            raise BadInputError(f'`jobs={jobs}` needs joblib: pip install "tangram-sim[sweep]"')
        self._dask = dask
        if dask is not None:
            jobs = jobs or dask_threads(dask)
        self.cache, self._report = cache, report
        self.jobs = jobs or (cores() if has_joblib else 1)
        self._too_many = () if dask is not None else _too_many(self.jobs)
        if self._too_many:
            self.jobs = MOST_PER_CORE * cores()
        self.made = self.kept = 0  # answers computed, answers found in the cache

    @property
    def notes(self) -> list[str]:
        """Notes on the cache and the number of processes."""
        return [*self._too_many, *(dict.fromkeys(self.cache.notes) if self.cache else ())]

    def run(
        self,
        work: Callable[[Item, Deadline], Answer],
        items: Sequence[Item],
        keys: Sequence[str],
        what: str = "simulating",
        *,
        before: int = 0,
        of: int = 0,
        deadline: Deadline | None = None,
    ) -> list[Answer | None]:
        """Results of `work` for every item, in order. Items with equal keys are worked on once.

        For a search in several runs `before` is the number of earlier answers and `of` the largest total, for
        progress. `work` must be a function of a module (it is sent to other processes) and return what JSON
        can hold. An interruption keeps every answer that had arrived.

        Each item gets an even share of the time that a `deadline` leaves. Once it is over, by the clock or by
        Ctrl-C, no other item is begun; items without an answer are None.
        """
        found: dict[str, Answer] = {}
        for key in dict.fromkeys(keys):
            answer = self.cache.get(key) if self.cache else None
            if answer is not None:
                found[key] = answer
                self.kept += 1
        waiting = {key: item for key, item in zip(keys, items, strict=True) if key not in found}
        total = max(of, before + len(set(keys)))
        self._say(before + len(found), total, what)
        for key, answer in self._made(work, waiting, deadline):
            found[key] = answer
            self.made += 1
            if self.cache and not answer.get(STOPPED):
                self.cache.put(key, answer)
            self._say(before + len(found), total, what)
        return [found.get(key) for key in keys]

    def _say(self, done: int, total: int, what: str) -> None:
        if self._report:
            self._report(done, total, f"{what} {done} of {total}")

    def _made(
        self,
        work: Callable[[Item, Deadline], Answer],
        waiting: dict[str, Item],
        deadline: Deadline | None,
    ) -> Iterator[tuple[str, Answer]]:
        if self.jobs == 1 or len(waiting) < 2:
            yield from _in_turn(work, waiting, deadline)
        elif self._dask is None:
            yield from self._spread(work, waiting, deadline or Deadline())
        else:
            from joblib import parallel_config

            with dask_client(self._dask), parallel_config(backend="dask"):
                yield from self._spread(work, waiting, deadline or Deadline())

    def _spread(
        self, work: Callable[[Item, Deadline], Answer], waiting: dict[str, Item], deadline: Deadline
    ) -> Iterator[tuple[str, Answer]]:
        """Yields (key, answer) from several processes as they arrive, until the deadline is over."""
        from joblib import Parallel, delayed

        def tasks() -> Iterator[Any]:
            for begun, (key, item) in enumerate(waiting.items()):
                turns = max((len(waiting) - begun) / self.jobs, 1.0)
                yield delayed(_one)(work, key, item, deadline.share(deadline.left_s() / turns))

        limited = deadline.left_s() < float("inf")
        missing = dict(waiting)
        with ending_with_parent():
            parallel = Parallel(
                n_jobs=self.jobs,
                return_as="generator_unordered",
                pre_dispatch="n_jobs" if limited else "2*n_jobs",  # a share runs from when it is handed out
                timeout=deadline.left_s() + LATE_S if limited else None,
            )
            answers = parallel(tasks())
        while True:
            try:
                with deadline.waiting():
                    found = next(answers, None)
            except worker_deaths():  # killed, for want of memory say: what it had not answered is made here
                yield from _in_turn(work, missing, deadline)
                return
            except NoAnswerInTime:  # joblib has ended the processes
                found = None
            except KeyboardInterrupt:
                if deadline.left_s():  # nobody waited for it
                    raise
                found = None
            if found is None:
                deadline.over()
                return
            del missing[found[0]]
            yield found
            parallel.timeout = deadline.left_s() + LATE_S if limited else None


def _in_turn(
    work: Callable[[Item, Deadline], Answer], waiting: dict[str, Item], deadline: Deadline | None
) -> Iterator[tuple[str, Answer]]:
    """Yields (key, answer) of items worked on one after the other, until the deadline is over."""
    timed = deadline or Deadline()
    for begun, (key, item) in enumerate(waiting.items()):
        if timed.over():
            return
        yield _one(work, key, item, timed.share(timed.left_s() / (len(waiting) - begun)))


def _one(
    work: Callable[[Item, Deadline], Answer], key: str, item: Item, deadline: Deadline
) -> tuple[str, Answer]:
    """(key, answer) of one item. Raises TangramError where `work` returns no dict."""
    answer = work(item, deadline)
    if not isinstance(answer, dict):
        raise TangramError(f"{work.__name__} answered {type(answer).__name__}; a sweep wants a dict")
    return key, answer
