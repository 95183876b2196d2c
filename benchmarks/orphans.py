"""`python -m benchmarks.orphans`: searches on two processes killed at random moments, and who outlives them.

A process is an orphan that carries the mark of its search in its environment (Linux: /proc) 2 seconds after
the search was ended. Folders that it left among the temporary ones are counted, too, and tracebacks.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks import purchase
from benchmarks.measure import surroundings

QUESTIONS = {
    "plan": "gpt3-6.7b azure-c1 --global-batch 128 --effort exhaustive --jobs 2",
    "purchase": "gpt3-6.7b {inputs}/fleet.yaml --catalogue {inputs}/catalogue.yaml --sub-islands "
    "--prices {inputs}/prices.yaml --budget-per-hour 150 --no-cache --jobs 2",
}
SIGNALS = (signal.SIGTERM, signal.SIGKILL, signal.SIGINT)
_MARK = "TANGRAM_ORPHANS"


@dataclass(frozen=True, slots=True)
class Killed:
    """What was there some time after a search had been ended by a signal."""

    verb: str
    signal: signal.Signals
    workers: int  # processes beside the first when it was ended
    orphans: int
    folders: tuple[str, ...]
    traceback: bool


def marked(mark: str) -> list[int]:
    """Processes of a search: pids of those that have its mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{_MARK}={mark}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:  # gone, or another user's
            continue
    return found


def killed(verb: str, how: signal.Signals, at_s: float | None, folder: Path, after_s: float = 2.0) -> Killed:
    """Begin a search, end it after `at_s` seconds (None: once workers run), look `after_s` seconds later.

    Ctrl-C reaches all of its processes, as it does from a terminal.
    """
    mark, temporary = folder.name, folder / "temporary"
    temporary.mkdir(parents=True)
    purchase.write_inputs(folder / "inputs")
    question = QUESTIONS[verb].format(inputs=folder / "inputs")
    line = [sys.executable, "-m", "tangram_sim.cli.main", verb, *question.split()]
    settings = surroundings(folder.parent / "compiled") | {_MARK: mark, "TMPDIR": str(temporary)}
    settings["JOBLIB_TEMP_FOLDER"] = str(temporary)
    with (folder / "out").open("w+") as out:
        process = subprocess.Popen(line, env=settings, stdout=out, stderr=out, start_new_session=True)
        if at_s is None:
            while process.poll() is None and len(marked(mark)) < 3:
                time.sleep(0.05)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.5 if at_s is None else at_s)
        workers = len(marked(mark)) - 1
        if how is signal.SIGINT:
            os.killpg(process.pid, how)
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, how)
        elif process.poll() is None:
            process.send_signal(how)
        process.wait()
        time.sleep(after_s)
        left = marked(mark)
        out.seek(0)
        said = out.read()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    folders = tuple(sorted(path.name for path in temporary.iterdir()))
    return Killed(verb, how, workers, len(left), folders, "Traceback" in said)


def main(given: Sequence[str]) -> int:
    """Print a line per kill and a summary; 1 where anything outlived its search."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.orphans", description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="searches ended (50)")
    parser.add_argument("--seed", type=int, default=1, help="which moments")
    asked = parser.parse_args(given)
    chance, counts = random.Random(asked.seed), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        for number in range(asked.kills):
            verb, how = chance.choice(sorted(QUESTIONS)), chance.choice(SIGNALS)
            at_s = round(chance.uniform(0.5, 8.0), 1)
            found = killed(verb, how, at_s, Path(name, str(number)))
            counts.update(
                orphans=found.orphans,
                folders=len(found.folders),
                tracebacks=found.traceback,
                with_workers=found.workers > 0,
            )
            sys.stdout.write(
                f"{number:3} {verb:8} {how.name:8} {at_s:4.1f} s  {found.workers} workers, then "
                f"{found.orphans} orphans {' '.join(found.folders)}{' TRACEBACK' * found.traceback}\n"
            )
            sys.stdout.flush()
    sys.stdout.write(
        f"{asked.kills} kills, {counts['with_workers']} with workers running: {counts['orphans']} orphans, "
        f"{counts['folders']} folders, {counts['tracebacks']} tracebacks\n"
    )
    return int(any(counts[what] for what in ("orphans", "folders", "tracebacks")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
