"""Ranks as processes: forked once, given torchrun's environment, asked to do one thing after another.

A rank that dies ends the run with a named error; no process outlives its launcher.
"""

import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection, wait
from typing import Any

from tangram_sim.errors import TangramError
from tangram_validate.testbed.errors import RankDiedError, TestbedError
from tangram_validate.testbed.network import MASTER_PORT, Network

_PR_SET_PDEATHSIG = 1
_HEAVY = (
    "tangram_validate.testbed.runner",
    "tangram_validate.testbed.step",
    "torch.distributed.tensor.parallel",
    "torch._dynamo",  # optimizers and checkpoints import it when first used
    "torch.utils.flop_counter",
    "tangram_validate.testbed.memory",
)
Task = Callable[..., Any]


def free_port(wanted: int = 0) -> int:
    """A TCP port of the loopback interface; raises TestbedError where the wanted one is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise TestbedError(
                f"--port {wanted}: in use ({error.strerror}); name another one, or leave it out"
            ) from None
        return int(probe.getsockname()[1])


@dataclass
class Ranks:
    """`world` rank processes, alive inside a `with` block; with a network each sits in its namespace."""

    world: int
    network: Network | None = None
    port: int = 0
    cores: Sequence[int] = ()  # rank r is pinned to cores[r] where given
    backend: str = "gloo"
    timeout_s: float = 300.0
    _processes: list[Any] = field(default_factory=list)
    _pipes: list[Connection] = field(default_factory=list)

    def __enter__(self) -> "Ranks":
        """Start the ranks and let them meet. Raises TestbedError."""
        if self.network is not None and self.network.ranks < self.world:
            raise TestbedError(
                f"the plan needs {self.world} ranks, the testbed offers {self.network.ranks}; "
                "take a larger testbed or a smaller plan"
            )
        # Loaded once here rather than once in every rank.
        for module in _HEAVY:
            import_module(module)
        port = MASTER_PORT if self.network is not None else free_port(self.port)
        context = multiprocessing.get_context("fork")
        for rank in range(self.world):
            ours, theirs = context.Pipe()
            self._pipes.append(ours)
            arguments = (rank, theirs, self, port, os.getpid())
            process = context.Process(target=_rank_main, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
        try:
            self._collect("start")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the ranks: politely first, then for sure."""
        for pipe in self._pipes:
            try:
                pipe.send(None)
            except OSError:
                continue  # it is dead already
        patience = time.monotonic() + 2.0
        for process in self._processes:
            process.join(max(0.0, patience - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes.clear()
        self._pipes.clear()

    def run(self, task: Task, *arguments: Any) -> list[Any]:
        """`task(*arguments)` on every rank; results by rank. Raises RankDiedError or what a rank raised."""
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send((task, arguments))
            except OSError:
                self._died(rank)
        return self._collect(getattr(task, "__name__", "task"))

    def _collect(self, what: str) -> list[Any]:
        waiting = dict(enumerate(self._pipes))
        results: dict[int, Any] = {}
        deadline = time.monotonic() + self.timeout_s
        while waiting:
            ready = wait(list(waiting.values()), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                late = ", ".join(map(str, waiting))
                raise TestbedError(f"ranks {late} did not finish `{what}` within {self.timeout_s:.0f} s")
            failed = []
            for rank, pipe in list(waiting.items()):
                if pipe not in ready:
                    continue
                del waiting[rank]
                try:
                    good, value = pipe.recv()
                except (EOFError, OSError):
                    self._died(rank)
                if good:
                    results[rank] = value
                else:
                    failed.append((rank, value))
            if failed:
                self._raise(failed, waiting)
        return [results[rank] for rank in range(self.world)]

    def _raise(self, failed: list[tuple[int, Any]], waiting: dict[int, Connection]) -> None:
        """The error of the rank that failed; where another one died, its death explains the failure."""
        for rank, pipe in waiting.items():
            self._processes[rank].join(0.5)
            if self._processes[rank].exitcode:  # a rank that failed by itself ends with 0
                pipe.close()
                self._died(rank)
        rank, (kind, text) = failed[0]
        if kind == "tangram":
            raise TestbedError(f"rank {rank}: {text}")
        raise RankDiedError(f"rank {rank} failed: {text}")

    def _died(self, rank: int) -> None:
        process = self._processes[rank]
        process.join(5)
        code = process.exitcode
        by = f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
        raise RankDiedError(f"rank {rank} of {self.world} died {by}; the run is void and was ended")


def _rank_main(rank: int, pipe: Connection, ranks: Ranks, port: int, owner: int) -> None:
    """A rank process: meet the others, then do what the launcher sends until it sends nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != owner:  # it ended before we asked to end with it
        os._exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")  # torch warns of its own future, once in every rank
    for other in ranks._pipes:
        other.close()
    try:
        _meet(rank, ranks, port)
        pipe.send((True, None))
        while (message := pipe.recv()) is not None:
            task, arguments = message
            pipe.send((True, task(*arguments)))
    except TangramError as error:
        pipe.send((False, ("tangram", str(error))))
    except (EOFError, BrokenPipeError):  # the launcher is gone
        os._exit(1)
    except Exception as error:  # whatever went wrong, the launcher says it and ends the others
        tail = traceback.format_exc(limit=-3)
        pipe.send((False, ("other", f"{type(error).__name__}: {error}\n{tail}")))
    # Without the interpreter's farewell: gloo's threads may wait for ranks that are gone.
    os._exit(0)


def _meet(rank: int, ranks: Ranks, port: int) -> None:
    import torch
    import torch.distributed as dist

    if ranks.cores:
        os.sched_setaffinity(0, {ranks.cores[rank % len(ranks.cores)]})
    address, interface = "127.0.0.1", "lo"
    if ranks.network is not None:
        ranks.network.release()
        ranks.network.enter(rank)
        address, interface = ranks.network.address(0), "eth0"
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(ranks.world),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(ranks.world),
        MASTER_ADDR=address,
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME=interface,
    )
    torch.set_num_threads(1)
    if ranks.backend == "nccl":
        torch.cuda.set_device(rank)
    from datetime import timedelta

    dist.init_process_group(ranks.backend, timeout=timedelta(seconds=ranks.timeout_s))
