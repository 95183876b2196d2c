"""`python -m benchmarks.limits`: how long verbs run past their time limit, and past Ctrl-C.

Every figure is of a whole process by the clock on the wall, from its start to its end: imports before the
limit begins to count are in it. CPU seconds past the limit or Ctrl-C say what a busy machine hides (Linux).
What is compiled stays on disk: each verb answers its first question once before, untold. Cases are the
clusters that this was once broken on, and generated ones. `--presses 3` presses Ctrl-C at three times of
every question, drawn from its name; a summary stands at the end.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import purchase
from benchmarks.anywhere.worlds import world
from benchmarks.measure import surroundings

THREE_KINDS = """\
name: three-kinds
nodes:
  - {count: 3, node: DGX-H100}
  - {count: 5, node: DGX-A100-80GB}
  - {count: 6, gpu: V100-SXM2-16GB, gpus: 4, intra_link: NVLink2, nic_gbps: 100}
"""
FOUR_AND_SIX = """\
name: h100-a100-l40s
nodes:
  - {count: 4, node: DGX-H100}
  - {count: 6, node: DGX-A100-80GB}
  - {count: 4, gpu: L40S, gpus: 8, intra_link: PCIe4x16, nic_gbps: 100}
"""
UNEQUAL_NICS = """\
name: unequal-nics
nodes:
  - {count: 5, node: DGX-A100-80GB}
  - {count: 3, gpu: A100-SXM4-80GB, gpus: 8, intra_link: NVLink3, nic_gbps: 200}
  - {count: 2, node: DGX-H100}
"""
KINDS = (
    ("H100-SXM5-80GB", 8, "NVLink4"),
    ("A100-SXM4-80GB", 8, "NVLink3"),
    ("A100-SXM4-80GB", 4, "NVLink3"),
    ("V100-SXM2-16GB", 4, "NVLink2"),
    ("L40S", 8, "PCIe4x16"),
    ("T4", 4, "PCIe3x16"),
)
NICS_GBPS = (10, 25, 50, 100, 200, 400)


def many_groups(groups: int) -> str:
    """A cluster file of so many groups of 1 to 8 nodes, kinds and NICs drawn by chance, always the same."""
    chance, lines = random.Random(7), [f"name: groups-{groups}", "nodes:"]
    for _ in range(groups):
        gpu, gpus, link = chance.choice(KINDS)
        node = f"gpu: {gpu}, gpus: {gpus}, intra_link: {link}, nic_gbps: {chance.choice(NICS_GBPS)}"
        lines.append(f"  - {{count: {chance.randint(1, 8)}, {node}}}")
    return "\n".join(lines) + "\n"


HARD = {
    "three-kinds": ("qwen3-14b", THREE_KINDS),
    "h100-a100-l40s": ("llama3-70b", FOUR_AND_SIX),
    "unequal-nics": ("llama3-8b", UNEQUAL_NICS),
    "groups-1000": ("llama3-8b", many_groups(1000)),
}
VERBS = ("plan", "compare", "what-if", "purchase")
OFFERS = """\
gpus:
  H100-SXM5-80GB: {price_per_hour: 2.99, available: 8}
  A100-SXM4-80GB: {price_per_hour: 1.75, available: 16}
  L40S: {price_per_hour: 0.9, available: 16}
"""
_MIX = "--workload 2455:510:0.3,824:253:0.3,496:18:0.4"
_SERVED = f"llama3-70b --fleet {{folder}}/offers.yaml {_MIX} --requests 300 --slo ttft=2,tpot=0.08"
SERVING = {  # every verb of serving that has a limit and plans, by name: its one question
    "serve plan": f"llama3-70b --fleet {{folder}}/offers.yaml {_MIX} --requests 3000 --budget 30",
    "serve compare": f"llama3-70b --fleet {{folder}}/offers.yaml {_MIX} --requests 3000 --budget 15",
    "serve what-if": f"{_SERVED} --rate 4 --add L40S:8 --add H100-SXM5-80GB:2+L40S:4",
    "serve purchase": f"{_SERVED} --rate 4 --budgets 4,15,30",
}
WARM_UP_S = 300.0  # of the question that is asked for the sake of what it compiles
LATEST_S = 120.0  # past the limit: a process that still runs is killed


@dataclass(frozen=True, slots=True)
class Ended:
    """How one process ended: by the clock, and with what."""

    wall_s: float
    cpu_s: float
    code: int
    said: str  # the last line on standard error, where it left with an error
    answered: bool  # something was printed, and it left with 0
    late_cpu_s: float  # used past the limit or Ctrl-C; 0 where it had ended, or nobody knows


def questions(folder: Path, seeds: Sequence[int]) -> Iterator[tuple[str, str]]:
    """(name, `MODEL CLUSTER OPTIONS`) of the hard clusters and of the generated worlds of some seeds."""
    for name, (model, text) in HARD.items():
        path = folder / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
        yield name, f"{model} {path} --global-batch 128"
    for seed in seeds:
        yield f"world {seed}", world(seed).write(folder).removeprefix("tangram plan ")


def command(verb: str, question: str, folder: Path) -> list[str]:
    """The command line of a verb that asks a question; what is bought is that of `benchmarks.purchase`."""
    bought = {
        "what-if": "--add p5.48xlarge:2 --add g6e.12xlarge:4 "
        f"--prices {folder}/prices.yaml --no-cache --jobs 1",
        "purchase": f"--catalogue {folder}/catalogue.yaml --prices {folder}/prices.yaml "
        "--budget-per-hour 150 --no-cache --jobs 1",
    }
    given = question.split()
    if verb in SERVING:
        return [sys.executable, "-m", "tangram_sim.cli.main", *verb.split(), *given]
    if verb in bought:  # these know no schedule
        given = [word for word in given if word != "--schedule" and word not in ("1f1b", "gpipe", "zb-h1")]
    return [sys.executable, "-m", "tangram_sim.cli.main", verb, *given, *bought.get(verb, "").split()]


def run(line: Sequence[str], compiled: Path, limit_s: float, interrupt_s: float | None = None) -> Ended:
    """Run a command to its end; SIGINT after `interrupt_s`. One that does not end is killed."""
    with tempfile.TemporaryFile("w+") as errors, tempfile.TemporaryFile("w+") as output:
        begin = time.perf_counter()
        process = subprocess.Popen(line, env=surroundings(compiled), stdout=output, stderr=errors)
        used_s = None
        at = limit_s if interrupt_s is None else interrupt_s
        for at_s, what in ((at, signal.SIGINT), (limit_s + LATEST_S, signal.SIGKILL)):
            while (left := begin + at_s - time.perf_counter()) > 0 and process.returncode is None:
                done, status, usage = os.wait4(process.pid, os.WNOHANG)
                if done:
                    process.returncode = os.waitstatus_to_exitcode(status)
                else:
                    time.sleep(min(left, 0.02))
            if process.returncode is None:
                used_s = used_s if used_s is not None else _cpu_s(process.pid)
                if at_s > limit_s or interrupt_s is not None:
                    process.send_signal(what)
        wall_s = time.perf_counter() - begin
        if process.returncode is None:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        last = errors.read().strip().splitlines()[-1:] if process.returncode else []
        shown = process.returncode == 0 and output.seek(0, os.SEEK_END) > 0
    cpu_s = usage.ru_utime + usage.ru_stime
    late_cpu_s = 0.0 if used_s is None else cpu_s - used_s
    return Ended(wall_s, cpu_s, process.returncode, "".join(last)[:160], shown, late_cpu_s)


def _cpu_s(pid: int) -> float | None:
    """CPU seconds that a process has used so far, where the kernel tells."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2]
    except OSError:
        return None
    return sum(map(int, told.split()[11:13])) / os.sysconf("SC_CLK_TCK")


def summary(late: dict[tuple[str, str], list[tuple[float, Ended]]]) -> str:
    """A table of seconds past limits and Ctrl-C, and of CPU seconds: a row for a verb and a way to end it."""
    heads = ["verb", "ended by", "runs", "median s", "95 %", "worst", "CPU s: median", "95 %", "worst"]
    heads.append("no answer")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for (verb, how), runs in late.items():
        both = sorted(seconds for seconds, _ in runs), sorted(ended.late_cpu_s for _, ended in runs)
        last = len(runs) - 1
        at = [some[min(int(share * len(runs)), last)] for some in both for share in (0.5, 0.95, 1.0)]
        none = sum(not ended.answered for _, ended in runs)
        figures = " | ".join(f"{item:.1f}" for item in at)
        lines.append(f"| {verb} | {how} | {len(runs)} | {figures} | {none} |")
    return "\n".join(lines) + "\n"


def main(given: Sequence[str]) -> None:
    """Print one row a case: seconds past the limit, past Ctrl-C, and how it ended."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__)
    parser.add_argument("--limits", type=float, nargs="*", default=[1, 3, 10], help="seconds (1 3 10)")
    parser.add_argument(
        "--seeds", type=int, nargs="*", default=[0, 2, 3, 5, 7, 9], help="worlds (0 2 3 5 7 9)"
    )
    parser.add_argument("--verbs", nargs="+", default=(*VERBS, *SERVING), choices=(*VERBS, *SERVING))
    parser.add_argument(
        "--interrupt-s", type=float, default=2.0, help="Ctrl-C after so many seconds; 0: never"
    )
    parser.add_argument("--presses", type=int, default=0, help="Ctrl-C at so many times drawn from 1 to 8 s")
    parser.add_argument("--no-hard", action="store_true", help="generated worlds alone")
    parser.add_argument("--only", nargs="*", help="names of questions")
    asked = parser.parse_args(given)
    late: dict[tuple[str, str], list[tuple[float, Ended]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        purchase.write_inputs(folder)
        (folder / "offers.yaml").write_text(OFFERS, encoding="utf-8")
        compiled = folder / "compiled"
        for verb in asked.verbs:
            of_verb = (
                [("offers", SERVING[verb].format(folder=folder))]
                if verb in SERVING
                else questions(folder, asked.seeds)
            )
            chosen = [
                (what, question)
                for what, question in of_verb
                if (not asked.only or what in asked.only) and not (asked.no_hard and what in HARD)
            ]
            for _, question in chosen[:1]:
                run(command(verb, question, folder), compiled, WARM_UP_S)
            for what, question in chosen:
                line = command(verb, question, folder)
                turns: list[tuple[str, float, float | None]] = [
                    (f"limit {limit_s:g}", limit_s, None) for limit_s in asked.limits
                ]
                if asked.interrupt_s:
                    turns.append(("Ctrl-C", asked.interrupt_s, asked.interrupt_s))
                chance = random.Random(f"{verb} {what}")
                drawn_s = [round(chance.uniform(1.0, 8.0), 1) for _ in range(asked.presses)]
                turns += [("Ctrl-C", at_s, at_s) for at_s in drawn_s]
                for how, until_s, interrupt_s in turns:
                    limited = [] if interrupt_s else ["--time-limit", f"{until_s:g}"]
                    ended = run([*line, *limited], compiled, until_s, interrupt_s)
                    if interrupt_s is None or ended.wall_s > interrupt_s:  # else it ended by itself
                        late.setdefault((verb, how), []).append((ended.wall_s - until_s, ended))
                    sys.stdout.write(
                        f"{verb:9} {what:15} {how:9} {until_s:4.1f} {ended.wall_s - until_s:+7.2f} s past, "
                        f"{ended.late_cpu_s:5.2f} of {ended.cpu_s:5.1f} CPU-s, left with "
                        f"{ended.code} {ended.said}\n"
                    )
                    sys.stdout.flush()
    sys.stdout.write(summary(late))


if __name__ == "__main__":
    main(sys.argv[1:])
