"""Running a plan file: which ranks, how many steps, what each reports; and the single-process reference."""

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tangram_sim.errors import BadInputError
from tangram_sim.training.plan import Plan
from tangram_validate.testbed.emulated import Device, Speed
from tangram_validate.testbed.errors import TestbedError
from tangram_validate.testbed.launch import Ranks

SEED = 11
WITHOUT_WAITS = Speed(1e18, 1e18)  # of a step of warm-up: no waits
START_AHEAD_S = 0.03  # ranks agree on when a step starts, this far ahead


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A plan to execute and how a rank is to do it: steps, device, emulated speeds or repeats, seed."""

    plan: Plan
    steps: int
    device: str = "cpu"
    speeds: tuple[Speed, ...] = ()  # emulated: of each rank; () runs real kernels
    repeats: tuple[int, ...] = ()  # real: how many times over each rank does its work
    memory: bool = False  # also measure peak memory, in a step of its own
    seed: int = SEED


@dataclass(frozen=True, slots=True)
class RankReport:
    """Seconds of every measured step on one rank."""

    rank: int
    stage: int
    step_s: tuple[float, ...]
    compute_s: tuple[float, ...]
    transfer_wait_s: tuple[float, ...]
    sync_s: tuple[float, ...]
    loss: tuple[float, ...]
    busy_s: float
    peak_memory_bytes: float = 0.0


@dataclass(frozen=True)
class RunReport:
    """Measurements of one executed plan: the reports of all ranks."""

    plan: Plan
    ranks: tuple[RankReport, ...]
    emulated: bool
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def steps_s(self) -> tuple[float, ...]:
        """Seconds of every step: from the common start until the last rank has ended."""
        return tuple(max(column) for column in zip(*(rank.step_s for rank in self.ranks), strict=True))

    @property
    def step_s(self) -> float:
        """Median seconds of the first three measured steps."""
        return statistics.median(self.steps_s[:3])

    @property
    def spread(self) -> float:
        """(largest - smallest) / median of the first three measured steps."""
        first = self.steps_s[:3]
        return (max(first) - min(first)) / statistics.median(first)

    @property
    def losses(self) -> tuple[float, ...]:
        """Training loss of every step."""
        stages = self.plan.pipelines[0].stages
        last, tp = stages[-1], stages[-1].layout.tp
        shown = [rank for rank in self.ranks if rank.stage == len(stages) - 1]
        shown = [rank for rank in shown if last.ranks.index(rank.rank) % tp == 0]
        return tuple(sum(column) for column in zip(*(rank.loss for rank in shown), strict=True))

    def of_stage(self, stage: int, what: str) -> float:
        """The median over steps of a rank's seconds, averaged over the ranks of a stage."""
        return statistics.mean(
            statistics.median(getattr(rank, what)[:3]) for rank in self.ranks if rank.stage == stage
        )

    @property
    def slowest_work_s(self) -> float:
        """The null prediction: all work of the busiest rank, one thing after another."""
        return max(rank.busy_s for rank in self.ranks)


def world_of(plan: Plan) -> int:
    """Ranks that a run of the plan needs: its highest rank number and those below."""
    return max(rank for stage in plan.pipelines[0].stages for rank in stage.ranks) + 1


def run_plan(ranks: Ranks, request: RunRequest) -> RunReport:
    """Execute a plan on ranks that are up. Raises BadInputError for plans that cannot be executed."""
    from tangram_validate.testbed.stage import require_runnable

    require_runnable(request.plan)
    needed = world_of(request.plan)
    if needed > ranks.world:
        raise TestbedError(f"the plan uses rank {needed - 1}; there are {ranks.world} ranks")
    reports = [report for report in ranks.run(on_rank, request) if report is not None]
    return RunReport(request.plan, tuple(reports), bool(request.speeds))


def tokens_of(request: RunRequest, step: int) -> Any:
    """The batch of a step, equal on every rank."""
    import torch

    generator = torch.Generator().manual_seed(request.seed * 1_000_003 + step)
    job = request.plan.job
    return torch.randint(request.plan.model.vocab, (job.global_batch, job.seq + 1), generator=generator).to(
        request.device
    )


def on_rank(request: RunRequest) -> RankReport | None:
    """One rank's part of a run (executed in its process, in an initialised process group)."""
    import torch.distributed as dist

    from tangram_validate.testbed.memory import peak_bytes
    from tangram_validate.testbed.stage import build_stage
    from tangram_validate.testbed.step import Executor, pair_groups

    rank = dist.get_rank()
    emulated = Device(request.speeds[rank]) if request.speeds else None
    repeats = request.repeats[rank] if request.repeats else 1
    here = build_stage(request.plan, rank, request.device, emulated, repeats, request.seed)
    executor = Executor(here) if here is not None else None
    if dist.get_backend() == "nccl":
        pairs = pair_groups(boundaries(request.plan))
        if executor is not None:
            executor.pairs = pairs
    timings, peak = [], 0.0
    warm = 2 if request.memory else 1
    for step in range(request.steps + warm):
        start = agree_on_start()
        tokens = tokens_of(request, step)
        if executor is None:
            continue
        pause = start - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        if request.memory and step == 1:
            peak = peak_bytes(partial(executor.step, tokens), executor.here.optimizer, request.device)
            continue
        if emulated is not None:  # warming up is for connections and buckets, not for waiting
            emulated.speed = request.speeds[rank] if step >= warm else WITHOUT_WAITS
        timing = executor.step(tokens)
        timings.append((timing, timing.end - start, step >= warm))
    dist.barrier()
    if here is None:
        return None
    measured = [(timing, seconds) for timing, seconds, counts in timings if counts]
    return RankReport(
        rank=rank,
        stage=here.number,
        step_s=tuple(seconds for _, seconds in measured),
        compute_s=tuple(timing.compute_s for timing, _ in measured),
        transfer_wait_s=tuple(timing.transfer_wait_s for timing, _ in measured),
        sync_s=tuple(timing.sync_s for timing, _ in measured),
        loss=tuple(timing.loss for timing, _, _ in timings),
        busy_s=measured[0][0].busy_s if measured else 0.0,
        peak_memory_bytes=peak,
    )


def boundaries(plan: Plan) -> list[Any]:
    """The messages over every boundary of a plan (the last one wraps around); none for a single stage."""
    from tangram_validate.testbed.boundary import Side, transfers

    pipeline = plan.pipelines[0]
    sides = [Side(stage.ranks, stage.layout.tp, stage.layout.dp) for stage in pipeline.stages]
    if len(sides) == 1:
        return [()]
    following = [*sides[1:], sides[0]]
    return [transfers(a, b, pipeline.microbatch, plan.job.seq) for a, b in zip(sides, following, strict=True)]


def agree_on_start() -> float:
    """A moment on the machine's monotonic clock, a little ahead, that all ranks start at."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    where = "cuda" if dist.get_backend() == "nccl" else "cpu"
    moment = torch.tensor([time.monotonic() + START_AHEAD_S], dtype=torch.float64, device=where)
    dist.broadcast(moment, src=0)
    return float(moment.item())


def single_process_losses(request: RunRequest) -> list[float]:
    """Losses of the same model and batches, trained in this process without any parallelism."""
    import torch
    import torch.nn.functional as F  # noqa: N812 - torch's own name for it

    from tangram_validate.testbed.stage import make_optimizer
    from tangram_validate.testbed.transformer import build_atom

    plan = request.plan
    model, job = plan.model, plan.job
    atoms = [build_atom(model, atom, request.seed).to(request.device) for atom in range(model.layers + 2)]
    whole = torch.nn.Sequential(*atoms)
    if model.tied:
        whole[-1].logits.weight = whole[0].tokens.weight
    optimizer = make_optimizer(job, list(whole.parameters()))
    losses = []
    for step in range(request.steps + 1):
        tokens = tokens_of(request, step)
        optimizer.zero_grad()
        total = 0.0
        for row in tokens.split(1):
            logits = whole(row[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), row[:, 1:].flatten(), reduction="sum")
            loss = loss / (job.global_batch * job.seq)
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses


def load_plan(path: Path, hwdb_folders: Sequence[Path] = ()) -> Plan:
    """The decisions of a plan file."""
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.studies.planfile import plan_from_document, read_plan

    hwdb = Hwdb.load(tuple(hwdb_folders))
    made = plan_from_document(read_plan(path), hwdb, str(path))
    if made.job.dtype == "auto":
        made = replace(made, job=replace(made.job, dtype="fp32"))
    return made


def run_file(
    path: Path, *, steps: int, device: str, dtype: str, port: int, compare: bool, hwdb: Sequence[Path]
) -> dict[str, Any]:
    """What `validate/run.py` does: run a plan file here, or as one rank of torchrun's; a JSON object."""
    plan = load_plan(path, hwdb)
    if dtype:
        plan = replace(plan, job=replace(plan.job, dtype=dtype))
    from tangram_validate.testbed.stage import require_runnable

    require_runnable(plan)
    request = RunRequest(plan, steps, device)
    world = world_of(plan)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return _under_torchrun(request, world)
    if device == "cuda":
        import torch

        if torch.cuda.device_count() < world:
            raise BadInputError(
                f"the plan needs {world} GPUs, this machine has {torch.cuda.device_count()}; use --device cpu"
            )
    with Ranks(world, port=port, backend="nccl" if device == "cuda" else "gloo") as ranks:
        report = run_plan(ranks, request)
    found = {
        "ranks": world,
        "steps_s": list(report.steps_s),
        "step_s": report.step_s,
        "loss": list(report.losses),
    }
    if compare:
        found["single_process_loss"] = single_process_losses(request)
    return found


def _under_torchrun(request: RunRequest, world: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    if int(os.environ["WORLD_SIZE"]) != world:
        raise BadInputError(f"the plan has {world} ranks, WORLD_SIZE is {os.environ['WORLD_SIZE']}")
    if request.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if request.device == "cuda" else "gloo")
    try:
        report = on_rank(request)
    finally:
        dist.destroy_process_group()
    if report is None:
        return {"rank": dist.get_rank(), "idle": True}
    return {
        "rank": report.rank,
        "stage": report.stage,
        "steps_s": list(report.step_s),
        "loss": list(report.loss),
    }
