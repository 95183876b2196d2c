"""The part of a plan that one rank runs: its stage's chunks as modules, sharded as the layout says.

Tensor parallelism is DTensor's `parallelize_module`, ZeRO is FSDP2's `fully_shard`, plain data parallelism
DistributedDataParallel (or, beside tensor parallelism, one all-reduce per gradient), recomputation
torch.utils.checkpoint. Emulated atoms take the same road, their tensor parallelism excepted, which waits
and reduces by itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from tangram_sim.errors import BadInputError
from tangram_sim.layouts import Layout
from tangram_sim.models import Experts, Model
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan, Stage
from tangram_sim.training.stage.sharing import atoms_held
from tangram_validate.testbed import transformer
from tangram_validate.testbed.boundary import Side
from tangram_validate.testbed.emulated import Device, EmulatedAtom, EmulatedOptimizer

MIB = float(1 << 20)
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}


def require_runnable(plan: Plan) -> None:
    """Raise BadInputError for plans the runner cannot execute, naming what and where."""
    if len(plan.pipelines) != 1:
        raise BadInputError(f"the plan has {len(plan.pipelines)} pipelines; the runner executes one")
    if plan.job.schedule not in ("1f1b", "gpipe", "interleaved"):
        raise BadInputError(
            f"schedule {plan.job.schedule!r}: the runner executes 1f1b, gpipe and interleaved pipelines"
        )
    if plan.job.dtype not in DTYPES:
        raise BadInputError(f"dtype {plan.job.dtype!r}: the runner computes in {', '.join(DTYPES)}")
    if plan.job.optimizer not in ("adamw", "adam", "sgd", "momentum"):
        raise BadInputError(f"optimizer {plan.job.optimizer!r}: the runner has adamw, adam, sgd and momentum")
    if plan.job.trainable < 1:
        raise BadInputError("the runner trains all parameters; this plan trains a share of them")
    transformer.require_supported(plan.model)
    for number, stage in enumerate(plan.pipelines[0].stages):
        if len(stage.parts) != 1 or len(stage.parts[0].layouts) != 1:
            raise BadInputError(f"stage {number}: several parts or layouts; the runner executes one of each")
        layout = stage.layout
        if layout.cp > 1 or layout.ep > 1:
            raise BadInputError(
                f"stage {number}: context and expert parallelism (cp {layout.cp}, ep {layout.ep}) are not "
                "executed; plan with --fix cp=1,ep=1"
            )
        for block in plan.model.blocks:
            attention = block.attention
            if attention.heads % layout.tp or attention.kv_heads % layout.tp:
                raise BadInputError(f"stage {number}: tp {layout.tp} does not divide the attention heads")


@dataclass
class Chunk:
    """One slice of a stage on this rank."""

    module: nn.Module
    first: bool  # holds the embedding
    last: bool  # holds the head
    data: str  # who reduces its gradients: "none", "ddp", "fsdp" or "manual"

    def parameters(self) -> Iterator[Tensor]:
        """All parameters, sharded as they lie."""
        return self.module.parameters()


class Sequence_(nn.Module):  # noqa: N801 - nn.Sequential hides a sequence-parallel cut, this shows it
    """Atoms in order; under sequence parallelism blocks see this rank's share of the tokens."""

    def __init__(self, atoms: list[nn.Module], mesh: Any, cut: bool) -> None:
        super().__init__()
        self.atoms = nn.ModuleList(atoms)
        self.mesh, self.cut = mesh, cut

    def forward(self, x: Tensor) -> Tensor:
        """The atoms one after another."""
        inside = False
        for atom in self.atoms:
            if self.cut and isinstance(atom, transformer.TransformerBlock) != inside:
                x, inside = self._move(x, not inside), not inside
            x = atom(x)
        return self._move(x, False) if inside else x

    def _move(self, x: Tensor, to_share: bool) -> Tensor:
        from torch.distributed.tensor import DTensor, Replicate, Shard

        whole, share = [Replicate()], [Shard(1)]
        before, after = (whole, share) if to_share else (share, whole)
        made = DTensor.from_local(x, self.mesh, before, run_check=False)
        return made.redistribute(placements=after).to_local()


@dataclass
class RankStage:
    """One rank's part of its stage: modules, process groups and optimizer."""

    plan: Plan
    number: int
    rank: int
    side: Side
    chunks: list[Chunk]
    mesh: DeviceMesh
    dp_group: Any
    tp_group: Any
    optimizer: Any
    device: str
    emulated: Device | None = None
    tied: Any = None  # ranks of first and last stage, where they share a matrix
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def stage(self) -> Stage:
        """This rank's stage in the plan."""
        return self.plan.pipelines[0].stages[self.number]


def meshes(plan: Plan, device: str) -> list[DeviceMesh]:
    """A (dp, tp) mesh per stage; all ranks make all of them in the same order, as torch requires."""
    made = []
    for stage in plan.pipelines[0].stages:
        layout = stage.layout
        ranks = torch.tensor(stage.ranks).reshape(layout.dp, layout.tp)
        made.append(DeviceMesh(device, ranks, mesh_dim_names=("dp", "tp")))
    return made


def build_stage(
    plan: Plan, rank: int, device: str, emulated: Device | None, repeats: int, seed: int
) -> RankStage | None:
    """This rank's stage; None for a rank the plan leaves idle (it still takes part in making groups)."""
    pipeline = plan.pipelines[0]
    every = meshes(plan, device)
    tied_group = None
    if plan.model.tied and len(pipeline.stages) > 1:
        both = sorted(set(pipeline.stages[0].ranks) | set(pipeline.stages[-1].ranks))
        tied_group = dist.new_group(both)
    number = next((n for n, stage in enumerate(pipeline.stages) if rank in stage.ranks), None)
    if number is None:
        return None
    stage, mesh, layout = pipeline.stages[number], every[number], pipeline.stages[number].layout
    tp_group, dp_group = mesh["tp"].get_group(), mesh["dp"].get_group()
    chunks = []
    for start, stop in atoms_held(stage, plan.model.layers):
        if emulated is not None:
            atoms: list[nn.Module] = [
                EmulatedAtom(
                    plan.model, atom, plan.job.seq, emulated, layout.tp, tp_group, layout.recompute == "full"
                )
                for atom in range(start, stop)
            ]
        else:
            atoms = [
                _real_atom(plan, atom, seed, repeats, layout, mesh, device) for atom in range(start, stop)
            ]
        cut = layout.sequence_parallel and layout.tp > 1 and emulated is None
        module: nn.Module = Sequence_(atoms, mesh["tp"], cut)
        first, last = start == 0, stop == plan.model.layers + 2
        chunks.append(_data_parallel(module, mesh, layout, first, last, dp_group))
    side = Side(stage.ranks, layout.tp, layout.dp)
    parameters = [parameter for chunk in chunks for parameter in chunk.parameters()]
    optimizer = EmulatedOptimizer(emulated, parameters) if emulated else make_optimizer(plan.job, parameters)
    tied = tied_group if stage.embedding or stage.head else None
    made = (plan, number, rank, side, chunks, mesh, dp_group, tp_group, optimizer, device, emulated, tied)
    return RankStage(*made)


def make_optimizer(job: Job, parameters: list[Tensor]) -> torch.optim.Optimizer:
    """The job's optimizer: Adam in one pass, as training stacks have it.

    Plain loops for sharded parameters, since a stage may mix them with whole ones.
    """
    from torch.distributed.tensor import DTensor

    if job.optimizer in ("sgd", "momentum"):
        return torch.optim.SGD(
            parameters, lr=1e-2, momentum=0.9 if job.optimizer == "momentum" else 0.0, foreach=False
        )
    kind = torch.optim.AdamW if job.optimizer == "adamw" else torch.optim.Adam
    fused = not any(isinstance(parameter, DTensor) for parameter in parameters)
    return kind(parameters, lr=1e-3, fused=fused, foreach=False)


def _real_atom(
    plan: Plan, atom: int, seed: int, repeats: int, layout: Layout, mesh: DeviceMesh, device: str
) -> nn.Module:
    module = transformer.build_atom(plan.model, atom, seed, repeats).to(device)
    if isinstance(module, transformer.TransformerBlock):
        module.recompute = layout.recompute == "full"
        module.attention.recompute_core = layout.recompute == "selective"
    if layout.tp > 1:
        tensor_parallel(module, plan.model, atom, mesh["tp"], layout.sequence_parallel)
    return module


def tensor_parallel(module: nn.Module, model: Model, atom: int, mesh: DeviceMesh, cut: bool) -> None:
    """Megatron's column and row products (Shoeybi et al., arXiv:1909.08053) by DTensor's own styles."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    if atom == 0:
        style = RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
        parallelize_module(module, mesh, {"tokens": style})
        return
    if atom > model.layers:
        parallelize_module(module, mesh, {"logits": ColwiseParallel(output_layouts=Replicate())})
        return
    columns, rows = ColwiseParallel(), RowwiseParallel(output_layouts=Shard(1) if cut else Replicate())
    plan: dict[str, Any] = {f"attention.{name}": columns for name in ("q", "k", "v")}
    plan["attention.o"] = rows
    facts = model.blocks[atom - 1].feed_forward
    if isinstance(facts, Experts):
        if cut:
            raise BadInputError(
                "sequence parallelism beside experts is not executed; leave it out of the plan"
            )
        plan |= {f"feed_forward.experts.*.{name}": columns for name in ("up", "gate")}
        plan["feed_forward.experts.*.down"] = rows
        if not facts.gated:
            del plan["feed_forward.experts.*.gate"]
    else:
        plan["feed_forward.up"], plan["feed_forward.down"] = columns, rows
        if facts.gated:
            plan["feed_forward.gate"] = columns
    if cut:
        gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        plan |= {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
        gathered = PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),), use_local_output=True
        )
        plan |= {"attention": gather, "feed_forward": gathered}
        norms = SequenceParallel(use_local_output=True)
        plan |= {"norm1": norms, "norm2": norms}
    parallelize_module(module, mesh, plan)


def sum_gradients(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """DDP hook: the sum over replicas, since every loss is a share of the whole batch's mean already."""
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    done = cast(Any, work).get_future().then(lambda reduced: reduced.value()[0])
    return cast(torch.futures.Future[Tensor], done)


def _data_parallel(
    module: nn.Module, mesh: DeviceMesh, layout: Layout, first: bool, last: bool, group: Any
) -> Chunk:
    if layout.dp == 1:
        return Chunk(module, first, last, "none")
    if layout.zero_stage:
        keep = layout.zero_stage < 3
        for atom in cast(Sequence_, module).atoms:
            fully_shard(atom, mesh=mesh["dp"], reshard_after_forward=not keep)
        sharded = cast(FSDPModule, fully_shard(module, mesh=mesh["dp"], reshard_after_forward=not keep))
        for part in sharded.modules():
            if isinstance(part, FSDPModule):
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)
        return Chunk(module, first, last, "fsdp")
    if layout.tp > 1 and not isinstance(cast(Sequence_, module).atoms[0], EmulatedAtom):
        return Chunk(module, first, last, "manual")  # DDP does not take DTensors
    largest = max(sum(p.numel() * p.element_size() for p in a.parameters()) for a in cast(Any, module).atoms)
    wrapped = DistributedDataParallel(module, process_group=group, bucket_cap_mb=largest / MIB)
    wrapped.register_comm_hook(group, sum_gradients)
    return Chunk(wrapped, first, last, "ddp")
