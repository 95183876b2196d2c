"""A small heterogeneous network on one Linux machine: a namespace per rank, shaped links, shared uplinks.

Islands are bridges; every rank's namespace hangs on its island's bridge by a veth pair, shaped by a token
bucket (tc tbf) in both directions. Islands meet at a core bridge over shaped uplinks. All names begin with
PREFIX and the owner's process id, so that leftovers of a dead owner are known and swept; a janitor process
sweeps at once when its owner is killed.
"""

import ctypes
import os
import platform
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tangram_validate.testbed.errors import TestbedError

PREFIX = "tgv"
MASTER_PORT = 29511  # inside the first rank's namespace, where nobody else listens
_CLONE_NEWNET = 0x40000000
_BURST_BYTES = 16_000  # of a token bucket: little enough that no message passes unshaped
_QUEUE_MS = 30
_NAME = re.compile(rf"{PREFIX}([0-9a-f]{{6}})[-bcuvr]")


def missing_means() -> str:
    """Why no testbed can be built here, in words; "" where one can."""
    if platform.system() != "Linux":
        return f"the testbed is made of Linux network namespaces; this is {platform.system()}"
    if os.geteuid() != 0:
        return "building network namespaces needs root"
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2")):
        if shutil.which(tool) is None:
            return f"the program `{tool}` is missing; install {package}"
    return _refusal()


@cache
def _refusal() -> str:
    """What the kernel says to one namespace with one shaped link, both removed again; "" where all is well.

    Root in a container may lack the right to either, and kernels are built without token buckets.
    """
    tag = f"{PREFIX}{os.getpid() % 0x1000000:06x}"
    space, outer, bridge = f"{tag}-probe", f"{tag}rp", f"{tag}bp"
    try:
        _ip("netns", "add", space)
        _ip("link", "add", bridge, "type", "bridge")
        _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
        _shape([], outer, 100.0)
        _shape(["-n", space], "eth0", 100.0)
        entered = subprocess.run(["ip", "netns", "exec", space, "true"], check=False, capture_output=True)
        if entered.returncode:
            return f"namespaces cannot be entered: {entered.stderr.decode(errors='replace').strip()}"
    except TestbedError as error:
        return f"network namespaces and shaped links cannot be made here: {error}"
    finally:
        for command in (("link", "del", outer), ("link", "del", bridge), ("netns", "del", space)):
            subprocess.run(["ip", *command], check=False, capture_output=True)
    return ""


@dataclass(frozen=True, slots=True)
class IslandNet:
    """`ranks` ranks behind one switch; rates are those of the shapers, one direction."""

    ranks: int
    link_mbps: float  # between a rank and its island's switch
    uplink_mbps: float  # from the switch to the other islands


@dataclass
class Network:
    """Namespaces and links of one testbed, alive inside a `with` block."""

    islands: tuple[IslandNet, ...]
    owner: int = field(default_factory=os.getpid)
    _janitor: int = 0
    _pipe: int = -1

    @property
    def tag(self) -> str:
        """What all names of this testbed begin with."""
        return f"{PREFIX}{self.owner % 0x1000000:06x}"

    @property
    def ranks(self) -> int:
        """Ranks over all islands."""
        return sum(island.ranks for island in self.islands)

    def address(self, rank: int) -> str:
        """The IPv4 address of a rank inside its namespace."""
        return f"10.83.{rank // 200}.{rank % 200 + 1}"

    def __enter__(self) -> "Network":
        """Build it. Raises TestbedError where it cannot be; nothing is left behind then."""
        why = missing_means()
        if why:
            raise TestbedError(f"no testbed: {why}. Loopback mode runs everywhere: add --loopback")
        sweep()
        self._guard()
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Remove every namespace and link of this testbed and dismiss the janitor."""
        remove(self.tag)
        if self._janitor:
            os.kill(self._janitor, signal.SIGKILL)
            os.waitpid(self._janitor, 0)
            os.close(self._pipe)
            self._janitor = 0

    def _guard(self) -> None:
        """Fork the janitor: it waits for the end of this process, however it comes, and removes the links."""
        reading, self._pipe = os.pipe()  # closed on exec, and ranks close it when they start
        self._janitor = os.fork()
        if self._janitor == 0:
            os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            os.close(self._pipe)
            null = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(null, stream)
            os.read(reading, 1)
            remove(self.tag)
            os._exit(0)
        os.close(reading)

    def release(self) -> None:
        """In a forked rank: let go of the pipe that tells the janitor whether the owner lives."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def enter(self, rank: int) -> None:
        """Move the calling (single-threaded) process into a rank's namespace."""
        libc = ctypes.CDLL(None, use_errno=True)
        with Path(f"/run/netns/{self.tag}-{rank}").open("rb") as handle:
            if libc.setns(handle.fileno(), _CLONE_NEWNET) != 0:
                raise TestbedError(
                    f"rank {rank} cannot enter its namespace: {os.strerror(ctypes.get_errno())}"
                )
        idle = Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle")
        if idle.exists():  # pauses between messages are the testbed's, not congestion
            idle.write_text("0")

    def _build(self) -> None:
        several = len(self.islands) > 1
        if several:
            _ip("link", "add", f"{self.tag}c", "type", "bridge")
            _ip("link", "set", f"{self.tag}c", "up")
        rank = 0
        for number, island in enumerate(self.islands):
            bridge = f"{self.tag}b{number}"
            _ip("link", "add", bridge, "type", "bridge")
            _ip("link", "set", bridge, "up")
            if several:
                near, far = f"{self.tag}u{number}", f"{self.tag}v{number}"
                _ip("link", "add", near, "type", "veth", "peer", "name", far)
                for end, master in ((near, bridge), (far, f"{self.tag}c")):
                    _ip("link", "set", end, "master", master)
                    _shape([], end, island.uplink_mbps)
                    _ip("link", "set", end, "up")
            for _ in range(island.ranks):
                self._add_rank(rank, bridge, island.link_mbps)
                rank += 1

    def _add_rank(self, rank: int, bridge: str, mbps: float) -> None:
        space, outer = f"{self.tag}-{rank}", f"{self.tag}r{rank}"
        _ip("netns", "add", space)
        _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", outer, "master", bridge)
        _shape([], outer, mbps)
        _ip("link", "set", outer, "up")
        inside = ["-n", space]
        _ip(*inside, "addr", "add", f"{self.address(rank)}/16", "dev", "eth0")
        _shape(inside, "eth0", mbps)
        _ip(*inside, "link", "set", "eth0", "up")
        _ip(*inside, "link", "set", "lo", "up")


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _shape(where: list[str], device: str, mbps: float) -> None:
    """A token bucket on everything that `device` sends."""
    rate = f"{mbps * 1000:.0f}kbit"
    limits = ("burst", str(_BURST_BYTES), "latency", f"{_QUEUE_MS}ms")
    _run("tc", *where, "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, *limits)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode == 0:
        return
    said = (done.stderr or done.stdout).strip()
    hint = ""
    if "File exists" in said:
        hint = "; a link or namespace of that name exists already: remove it, or end the run that owns it"
    raise TestbedError(f"`{' '.join(command)}` failed: {said}{hint}")


def sweep() -> list[str]:
    """Remove what testbeds of dead processes left; their tags."""
    dead = sorted(tag for tag in _tags() if not Path(f"/proc/{int(tag[len(PREFIX) :], 16)}").exists())
    for tag in dead:
        remove(tag)
    return dead


def _names() -> tuple[list[str], list[str]]:
    """(namespaces, links of the root namespace) that carry our prefix."""
    spaces = Path("/run/netns")
    named = [path.name for path in spaces.iterdir()] if spaces.is_dir() else []
    links = [path.name for path in Path("/sys/class/net").iterdir()]
    return [name for name in named if _NAME.match(name)], [name for name in links if _NAME.match(name)]


def _tags() -> set[str]:
    return {name[: len(PREFIX) + 6] for names in _names() for name in names}


def remove(tag: str) -> None:
    """Remove all namespaces and links of one testbed; what is gone already is fine."""
    spaces, links = _names()
    for name in spaces:
        if name.startswith(tag):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
    for name in links:
        if name.startswith(tag):
            subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)
