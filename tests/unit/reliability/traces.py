"""Step traces for tests: synthetic ones, and where the measured ones lie."""

from pathlib import Path

import numpy as np
import pytest

from tangram_sim.reliability.traces.kinds import CODES
from tangram_sim.reliability.traces.trace import StepTrace, TraceRows, assemble
from tests.places import SHARED

ELASTIC = SHARED / "data" / "elastic"


def shared(name: str) -> Path:
    """A file of the shared data; skips the test where the folder is absent."""
    if not ELASTIC.is_dir():
        pytest.skip("no folder ../shared/data/elastic beside the checkout: measured traces are not shipped")
    return ELASTIC / name


def one_f_one_b(stages: int, stage: int, microbatches: int) -> list[tuple[str, int]]:
    """Passes of one stage in the order of 1F1B."""
    warm = min(stages - stage - 1, microbatches)
    passes = [("F", m) for m in range(warm)]
    for m in range(microbatches - warm):
        passes += [("F", warm + m), ("B", m)]
    return passes + [("B", m) for m in range(microbatches - warm, microbatches)]


def rows_of(
    dp: int = 2,
    stages: int = 3,
    microbatches: int = 4,
    steps: int = 3,
    slow: dict[tuple[int, int], float] | None = None,
    forward_s: float = 0.01,
) -> list[dict[str, float | str]]:
    """A consistent made-up trace of passes and collectives without transfers: each pass as early as it
    can run.
    """
    rows: list[dict[str, float | str]] = []

    def add(step: int, dp: int, stage: int, op: str, seq: int, start: float, took: float) -> None:
        rows.append(
            {"step": step, "dp": dp, "stage": stage, "op": op, "seq": seq, "start": start, "dur": took}
        )

    for step, replica in np.ndindex(steps, dp):
        ends: dict[tuple[str, int, int], float] = {}
        program = {s: one_f_one_b(stages, s, microbatches) for s in range(stages)}
        clock = dict.fromkeys(range(stages), 0.002)
        for s in range(stages):
            add(step, replica, s, "AG", 0, 0.0, 0.002)
        while any(program.values()):
            for s in range(stages):
                while program[s]:
                    op, m = program[s][0]
                    needs = ("F", s - 1, m) if op == "F" else ("B", s + 1, m)
                    if 0 <= needs[1] < stages and needs not in ends:
                        break
                    start = max(clock[s], ends.get(needs, 0.0))
                    took = forward_s * (1 if op == "F" else 2) * (slow or {}).get((replica, s), 1.0)
                    ends[op, s, m] = clock[s] = start + took
                    add(step, replica, s, op, m, start, took)
                    program[s].pop(0)
        for s in range(stages):
            add(step, replica, s, "OP", 0, clock[s], 0.001)
    return rows


def assembled(rows: list[dict[str, float | str]], name: str = "made-up") -> StepTrace:
    """Rows of `rows_of` as a trace."""

    def ints(column: str) -> np.ndarray:
        return np.array([row[column] for row in rows], dtype=np.int64)

    return assemble(
        TraceRows(
            ints("step"),
            ints("dp"),
            ints("stage"),
            np.array([CODES[str(row["op"])] for row in rows], dtype=np.int64),
            ints("seq"),
            np.array([row["start"] for row in rows], dtype=np.float64),
            np.array([row["dur"] for row in rows], dtype=np.float64),
        ),
        name,
    )


def written(rows: list[dict[str, float | str]], path: Path) -> Path:
    """Rows of `rows_of` as a CSV file."""
    lines = ["step,dp,stage,op,seq,start_us,dur_us"]
    for r in rows:
        start, took = float(r["start"]) * 1e6, float(r["dur"]) * 1e6
        lines.append(f"{r['step']},{r['dp']},{r['stage']},{r['op']},{r['seq']},{start!r},{took!r}")
    path.write_text("\n".join(lines) + "\n")
    return path
