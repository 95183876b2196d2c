"""One rank of a data-parallel run that may be killed.

Run as `python -m tangram_validate.testbed.failing_rank SETTING.json`.
It logs what it does when, one JSON line each, to its own file: those of a killed rank are still there.
Weights, reductions and checkpoints are real; what a GPU would compute is a timed wait as long as its rows ask
for, in which the same arithmetic runs on a few rows, so that other work on the machine does not change a
step.
"""

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from tangram_validate.testbed.emulated import Device, Speed

_COMPUTED = 16  # rows that really run through the network in a step: they give gradients of the real sizes


class Log:
    """Events of one rank with the time of day."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("a", buffering=1)

    def __call__(self, event: str, step: int = -1) -> None:
        """Note an event of a step."""
        self.file.write(json.dumps({"event": event, "step": step, "time_s": time.time()}) + "\n")


def join(rank: int, ranks: int, port: int) -> None:
    """Form the group of `ranks` over the store at `port`."""
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=60),
    )


def end(code: int) -> NoReturn:
    """End the process at once.

    All that it wrote is in its files. The interpreter's own end would take down threads of gloo that may
    still wait for a lost rank, and then sometimes aborts ("terminate called without an active exception").
    """
    sys.stderr.flush()
    os._exit(code)


def main(setting: dict[str, Any]) -> None:
    """Train to the last step, from the newest checkpoint; end at once where this rank is to be killed."""
    rank, ranks = setting["rank"], setting["ranks"]
    log = Log(Path(setting["folder"]) / f"rank{rank}.jsonl")
    checkpoint = Path(setting["folder"]) / "checkpoint.pt"
    torch.manual_seed(0)
    torch.set_num_threads(1)
    width = setting["width"]
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(6)))
    optimizer = torch.optim.Adam(model.parameters())
    gpu = Device(Speed(flop_per_s=1.0, memory_bytes_per_s=1.0))  # only its time line is used
    step = 0
    log("imported")
    join(rank, ranks, setting["port"])
    log("joined")
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    dist.barrier()
    log("ready", step)
    while step < setting["steps"]:
        log("step", step)
        gpu.start()
        compute_s = setting["batch"] / ranks * setting["row_s"]
        optimizer.zero_grad()
        model(torch.randn(_COMPUTED, width)).square().mean().backward()
        gpu.wait(compute_s / 2)
        if setting["kill"] and rank == setting["victim"] and step == setting["killed_at"]:
            log("killed", step)
            os.kill(os.getpid(), signal.SIGKILL)
        gpu.wait(compute_s / 2)
        try:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        except RuntimeError:  # a peer is gone: gloo says so at the next collective
            log("noticed", step)
            if not setting["shrink"]:
                end(3)
            dist.destroy_process_group()
            others = [other for other in range(ranks) if other != setting["victim"]]
            ranks = len(others)
            join(others.index(rank), ranks, setting["port"] + 1)
            dist.barrier()
            log("ready", step)
            continue
        for parameter in model.parameters():
            parameter.grad /= ranks
        optimizer.step()
        step += 1
        log("done", step)
        if step % setting["every"] == 0 and step < setting["steps"]:
            if rank == 0:
                saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(saved, checkpoint.with_suffix(".part"))
                checkpoint.with_suffix(".part").replace(checkpoint)
            dist.barrier()
            log("saved", step)
    log("end", step)
    dist.destroy_process_group()
    if not setting["kill"]:  # how long ranks that run take to form a group
        log("forming")
        join(rank, ranks, setting["port"] + 1)
        dist.barrier()
        log("formed")
        dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    end(0)
