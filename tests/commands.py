"""Running the `tangram` command inside the test process, and small inputs that plan in no time."""

import io
import json
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from typer.testing import CliRunner

from tangram_sim.cli import command_clock
from tangram_sim.cli.main import app, main

MODEL = """\
name: tiny
hidden: 512
vocab: 8000
max_seq: 4096
layers:
  - {count: 4, attention: {heads: 8}, feed_forward: {width: 2048}}
"""

EXPERTS = """\
name: tiny-moe
hidden: 512
vocab: 8000
max_seq: 4096
layers:
  - {count: 4, attention: {heads: 8}, experts: {count: 8, active: 2, width: 1024}}
"""

CLUSTER = """\
name: lab
nodes:
  - {count: 2, gpu: T4, gpus: 4, intra_link: PCIe3x16, nic_gbps: 25}
  - {count: 1, gpu: A100-SXM4-40GB, gpus: 4, intra_link: NVLink3, nic_gbps: 100}
"""


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def tangram(*arguments: object, columns: int = 0) -> Finished:
    """Run the command as a shell would; `columns` is the width of the window, 0 a pipe.

    A time limit counts from this call, not from the start of a test process that is as old as the suite.
    """
    out, err, code = io.StringIO(), io.StringIO(), -1
    argv = ["tangram", *map(str, arguments)]
    environment = {"COLUMNS": str(columns) if columns else ""}
    with (
        patch.object(sys, "argv", argv),
        patch.object(command_clock, "process_start_s", time.monotonic),
        patch.dict("os.environ", environment),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as leave:
            code = leave.code if isinstance(leave.code, int) else 1
    return Finished(code, out.getvalue(), err.getvalue())


def files(folder: Path) -> tuple[Path, Path]:
    """(model file, cluster file) of the small example, written into `folder`."""
    model, cluster = folder / "tiny.yaml", folder / "lab.yaml"
    model.write_text(MODEL)
    cluster.write_text(CLUSTER)
    return model, cluster


def quickest(line: Sequence[str], enough_s: float) -> tuple[float, str]:
    """CPU seconds of the quickest of three runs of a command, and what the last of them printed.

    The first run compiles, and the next may load what that did not come to; one of `enough_s` ends it.
    """
    spent_s = list[float]()
    while len(spent_s) < 3 and (not spent_s or spent_s[-1] >= enough_s):
        begin = time.process_time()
        run = CliRunner().invoke(app, list(line))
        spent_s.append(time.process_time() - begin)
    return min(spent_s), run.output
