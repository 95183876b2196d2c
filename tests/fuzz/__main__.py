"""`python -m tests.fuzz [--cases N] [--from N] [--seed N] [--case N]`: broken rules, and a table of verbs."""

import argparse
import resource
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from tests.fuzz.cases import COMPILING_S, Outcome, case, run, sound_case
from tests.fuzz.inputs import COMMANDS, write

_MEMORY_BYTES = 6 << 30  # of the address space: a figure that asks for more ends in a MemoryError


def main() -> int:
    """Run the cases; 1 when a rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="how many")
    parser.add_argument("--from", dest="first", type=int, default=0, help="number of the first")
    parser.add_argument("--seed", type=int, default=1, help="which cases the numbers mean")
    parser.add_argument("--case", type=int, help="this one only, shown in full")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        sound = {name: (folder / name).read_text() for name in write(folder)}
        if given.case is not None:
            one = case(given.case, given.seed, sound)
            sys.stdout.write(f"{one.words}\n" + "".join(f"{name}: {data!r}\n" for name, data in one.broken))
        for number in range(len(COMMANDS)):
            outcome = run(sound_case(number), folder, sound, COMPILING_S)
            if (outcome.code, outcome.problem) != (0, ""):
                sys.stdout.write(f"not sound: tangram {COMMANDS[number]}\n{outcome.problem}\n")
                return 1
        numbers = [given.case] if given.case is not None else range(given.first, given.first + given.cases)
        began, outcomes = time.process_time(), []
        for number in numbers:
            outcome = run(case(number, given.seed, sound), folder, sound)
            outcomes.append(outcome)
            if outcome.problem:
                sys.stdout.write(
                    f"--- case {number} (seed {given.seed}): tangram {' '.join(outcome.case.words)[:300]}\n"
                )
                sys.stdout.write(f"{outcome.problem}\n")
                sys.stdout.flush()
    _table(outcomes)
    broken = sum(bool(one.problem) for one in outcomes)
    sys.stdout.write(
        f"{len(outcomes):,} cases, {broken} broke the rule, {time.process_time() - began:.0f} CPU-s\n"
    )
    return int(broken > 0)


def _table(outcomes: list[Outcome]) -> None:
    by_command: dict[str, list[Outcome]] = defaultdict(list)
    for one in outcomes:
        by_command[" ".join(COMMANDS[one.case.number % len(COMMANDS)].split()[:3])[:34]].append(one)
    sys.stdout.write(
        f"{'command':36}{'cases':>7}{'answered':>9}{'refused':>9}{'broken':>8}{'longest CPU-s':>15}\n"
    )
    for name, group in by_command.items():
        codes = [one.code for one in group]
        sys.stdout.write(
            f"{name:36}{len(group):7}{codes.count(0):9}{codes.count(2):9}"
            f"{sum(bool(one.problem) for one in group):8}{max(one.cpu_s for one in group):15.1f}\n"
        )


if __name__ == "__main__":
    sys.exit(main())
