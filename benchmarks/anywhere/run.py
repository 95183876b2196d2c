"""`python -m benchmarks anywhere`: plan the worlds of some seeds, each in a process of its own."""

import argparse
import json
import platform
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import date
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.anywhere import launchable
from benchmarks.anywhere.laws import verdicts
from benchmarks.anywhere.markets import LAWS, told
from benchmarks.anywhere.narrower import ALLOWED, as_json, comparisons, table
from benchmarks.anywhere.table import Case, lines
from benchmarks.anywhere.usual import usual
from benchmarks.anywhere.worlds import TINY, World, world
from benchmarks.measure import Spent, spend
from tangram_sim.hwdb import Hwdb

PEERS = ("uniform", "sailor", "metis", "flashflex", "hap")
# What compiles most of what worlds need, so that the first seeds do not pay for it.
WARM = (0, 1, 2)
WAIT = 4  # seconds of the clock for each CPU second allowed: others may use the machine, too


def main(given: Sequence[str]) -> None:
    """Run what is asked for; the exit code says whether any world broke."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks anywhere", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="so many worlds (10)")
    parser.add_argument(
        "--from", type=int, default=0, dest="first", metavar="SEED", help="the first seed (0)"
    )
    parser.add_argument("--limit-s", type=float, default=120.0, help="CPU seconds of each process (120)")
    parser.add_argument("--peers", action="store_true", help=f"also ask {', '.join(PEERS)}")
    parser.add_argument("--peer-limit-s", type=float, default=30.0, help="seconds of each peer (30)")
    parser.add_argument(
        "--exhaustive-s", type=float, default=0.0, help="also search so many seconds with all effort (0: not)"
    )
    parser.add_argument("--most-gpus", type=int, default=10**9, help="leave out larger worlds (none)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to FILE")
    parser.add_argument("--output", type=Path, metavar="FILE.md", help="also write the page to FILE.md")
    parser.add_argument("--laws", action="store_true", help="ask tiny worlds what better questions must do")
    parser.add_argument(
        "--markets",
        action="store_true",
        help="laws of rentals, services, memory and purchases in small worlds",
    )
    parser.add_argument(
        "--narrower", action="store_true", help="ask mixed clusters open questions and narrower ones"
    )
    parser.add_argument(
        "--questions", type=int, default=4, metavar="N", help="narrower ones beside each open one (4)"
    )
    parser.add_argument(
        "--answers",
        default="free,megatron",
        help="with --narrower and --launchable: free, or frameworks (free,megatron)",
    )
    parser.add_argument(
        "--launchable", action="store_true", help="ask mixed clusters for free and for launchable plans"
    )
    parser.add_argument("--usual", action="store_true", help="with --laws: worlds as people write them")
    parser.add_argument("--show", action="store_true", help="describe the worlds, plan nothing")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write the worlds' files, plan nothing")
    asked = parser.parse_args(given)
    hwdb = Hwdb.load()
    if asked.markets:
        sys.exit(_markets(range(asked.first, asked.first + asked.seeds), hwdb))
    if asked.narrower:
        _narrower(asked, hwdb)
        return
    if asked.launchable:
        _launchable(asked, hwdb)
        return
    if asked.laws:
        made = usual if asked.usual else partial(world, size=TINY)
        _laws([made(seed, hwdb=hwdb) for seed in range(asked.first, asked.first + asked.seeds)], hwdb)
        return
    worlds = [world(seed, hwdb=hwdb) for seed in range(asked.first, asked.first + asked.seeds)]
    worlds = [one for one in worlds if one.cluster.gpus <= asked.most_gpus]
    if asked.show or asked.write:
        for one in worlds:
            command = one.write(asked.write) if asked.write else ""
            sys.stdout.write(f"{one.seed}: {one.cluster.gpus} GPUs: {one.words()}\n")
            sys.stdout.write(f"    {command}\n" if command else "")
        return
    cases = []
    with TemporaryDirectory() as folder:
        for seed in WARM:
            _asked(seed, "tangram", asked.limit_s, Path(folder))
        peers = PEERS if asked.peers else ()
        for case in run(worlds, peers, asked.limit_s, asked.peer_limit_s, Path(folder)):
            if asked.exhaustive_s:
                allowed = 2 * asked.exhaustive_s, Path(folder), asked.exhaustive_s
                case.exhaustive, _ = _asked(case.seed, "exhaustive", *allowed)
            cases.append(case)
            sys.stdout.write(_line(case) + "\n")
            sys.stdout.flush()
            _write(asked, given, cases)
    sys.stdout.write("\n" + "\n".join(lines(cases, _command(given), _about())) + "\n")
    sys.exit(1 if any(case.outcome in ("broke", "replay") for case in cases) else 0)


def _markets(seeds: Sequence[int], hwdb: Hwdb) -> int:
    """Print every comparison that does not hold, and how many there were; 1 where there are some."""
    broken = 0
    for name in LAWS:
        count, found = 0, 0
        for seed, one in told(name, seeds, hwdb):
            count, found = count + 1, found + (not one.holds)
            if not one.holds:
                sys.stdout.write(
                    f"{name}, seed {seed}: {one.law}: {one.what}: {one.base:g}, then {one.other:g}\n"
                )
                sys.stdout.flush()
        sys.stdout.write(f"{name}: {found} of {count} broken\n")
        broken += found
    return int(broken > 0)


def _narrower(asked: argparse.Namespace, hwdb: Hwdb) -> None:
    """Print every narrower question with a better answer as it is found, and the table of all."""
    found = []
    seeds = range(asked.first, asked.first + asked.seeds)
    for one in comparisons(seeds, asked.answers.split(","), asked.questions, hwdb):
        found.append(one)
        if one.better > ALLOWED:
            steps = f"{one.open_s:.5g} s, then {one.narrow_s:.5g} s: {one.better:.2%} better"
            sys.stdout.write(f"{one.seed}: {one.answer}, {one.restriction}: {steps}; {one.words}\n")
            sys.stdout.flush()
        if asked.json:
            asked.json.write_text(json.dumps([as_json(each) for each in found], indent=1) + "\n")
    sys.stdout.write("\n" + "\n".join(table(found)) + "\n")


def _launchable(asked: argparse.Namespace, hwdb: Hwdb) -> None:
    """Print steps and CPU seconds of every answer as it is found, and the tables of all."""
    found = []
    frameworks = [name for name in asked.answers.split(",") if name != launchable.FREE]
    for one in launchable.answers(range(asked.first, asked.first + asked.seeds), frameworks, hwdb):
        found.append(one)
        step = f"{one.step_s:9.5g} s" if one.step_s else "    no plan"
        sys.stdout.write(f"{one.seed:5} {one.answer:10} {step} {one.cpu_s:7.2f} CPU-s  {one.words}\n")
        sys.stdout.flush()
        if asked.json:
            asked.json.write_text(json.dumps([launchable.as_json(each) for each in found], indent=1) + "\n")
    sys.stdout.write("\n" + "\n".join(launchable.table(found)) + "\n")


def _laws(worlds: Sequence[World], hwdb: Hwdb) -> None:
    """Print every law that a world breaks, and how often each was asked and broken."""
    asked, broken = Counter[str](), Counter[str]()
    for one in worlds:
        for verdict in verdicts(one, hwdb=hwdb):
            asked[verdict.law] += 1
            if verdict.broken:
                broken[verdict.law] += 1
                steps = f"{verdict.base_s:.5g} s, then {verdict.other_s:.5g} s: {verdict.broken:.2%} off"
                sys.stdout.write(f"{one.seed}: {verdict.law}, {verdict.what}: {steps}; {one.words()}\n")
                sys.stdout.flush()
    for law, count in asked.items():
        sys.stdout.write(f"{law}: {broken[law]} of {count} broken\n")


def run(
    worlds: Sequence[World], peers: Sequence[str], limit_s: float, peer_limit_s: float, compiled: Path
) -> Iterator[Case]:
    """One case after the other; `compiled` keeps numba's code from process to process."""
    for one in worlds:
        found, spent = _asked(one.seed, "tangram", limit_s, compiled)
        nodes = sum(group.count for group in one.cluster.groups)
        cpu_s = found.get("cpu_s", spent.cpu_s)
        case = Case(one.seed, one.words(), one.cluster.gpus, nodes, one.kinds, cpu_s, spent.peak_bytes, found)
        for peer in peers:
            case.peers[peer], _ = _asked(one.seed, peer, 4 * peer_limit_s, compiled, peer_limit_s)
        yield case


def _asked(
    seed: int, planner: str, limit_s: float, compiled: Path, peer_limit_s: float = float("inf")
) -> tuple[dict[str, Any], Spent]:
    """One planner's answer in one world, and what the process cost."""
    arguments = ["-m", "benchmarks.anywhere.answer", str(seed), planner, str(peer_limit_s), str(limit_s)]
    spent = spend(arguments, compiled, limit_s=WAIT * limit_s)
    if spent.killed:
        return {"broke": f"no answer within {limit_s:g} CPU s"}, spent
    if spent.code:
        last = spent.said.strip().splitlines()[-1:] or ["nothing said"]
        return {"broke": f"left with {spent.code}: {last[0]}"}, spent
    return json.loads(spent.printed), spent


def _line(case: Case) -> str:
    """One world as it ends."""
    step = f"{case.step_s:9.4g} s" if case.step_s else f"{case.outcome:>11}"
    gap = f"{case.gap:7.1%}" if case.gap is not None else " " * 7
    peer = case.best_gain()
    ahead = f" {peer:5.2f}x" if peer is not None else ""
    if (longer := case.over_exhaustive()) is not None:
        ahead += f" {longer:+7.2%}"
    facts = f"{case.seed:5} {case.cpu_s:7.1f} CPU-s {case.peak_bytes / 1e6:5.0f} MB {step} {gap}{ahead}"
    return f"{facts}  {case.gpus:5} GPUs {case.words}"


def _command(given: Sequence[str]) -> str:
    return f"python -m benchmarks anywhere {shlex.join(given)}".rstrip()


def _about() -> str:
    return (
        "CPU seconds of a cold process on one core, compiled code on disk. "
        f"Python {platform.python_version()}, {platform.machine()}, {date.today().isoformat()}."
    )


def _write(asked: argparse.Namespace, given: Sequence[str], cases: Sequence[Case]) -> None:
    """What is known so far: a run of hours that is broken off leaves its figures."""
    if asked.json:
        asked.json.write_text(json.dumps([asdict(case) for case in cases], indent=1) + "\n")
    if asked.output:
        asked.output.write_text("\n".join(lines(cases, _command(given), _about())) + "\n")
