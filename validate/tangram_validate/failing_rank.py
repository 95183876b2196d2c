"""One rank of a data-parallel run that may be killed: `python -m tangram_validate.failing_rank SETTING.json`.

It logs what it does when, one JSON line each, to its own file: those of a killed rank are still there.
"""

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


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
        batch = torch.randn(256, width)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        if setting["kill"] and rank == setting["victim"] and step == setting["killed_at"]:
            log("killed", step)
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        except RuntimeError:  # a peer is gone: gloo says so at the next collective
            log("noticed", step)
            if not setting["shrink"]:
                sys.exit(3)
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


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
