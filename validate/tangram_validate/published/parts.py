"""Where the seconds of a predicted step go on its busiest stage: what a calibration of stacks recombines.

Class seconds are summed as if nothing ran beside anything else; `pass_s`, `sync_s` and `idle_s` say what is
left of them once the ops have been played.
"""

from dataclasses import dataclass

import numpy as np

from tangram_sim.layers.atoms import Atom
from tangram_sim.layers.program import CLASSES
from tangram_sim.models import Block
from tangram_sim.training.stage.pricing import Pricer
from tangram_sim.training.stage.sharing import atoms_held
from tangram_sim.training.stage.state import reduced_apart_s
from tangram_sim.training.step.lowered import LoweredStep, Lowering


@dataclass(frozen=True, slots=True)
class StepParts:
    """Seconds per step on the stage whose compute stream is busiest."""

    gemm_s: float
    attention_s: float
    memory_s: float  # norms, activations, losses: bound by memory bandwidth
    tensor_parallel_s: float
    expert_parallel_s: float
    context_parallel_s: float
    data_parallel_s: float  # gradient reduction and weight gathering, hidden or not
    dispatch_s: float  # the host launching kernels
    pass_s: float  # forward and backward passes as played: the classes above, overlapped
    sync_s: float  # gradient synchronisation that no backward hides
    optimizer_s: float
    send_s: float  # activations and gradients handed to neighbours, hidden or not
    idle_s: float  # the rest of the step: bubble, waiting for neighbours and for tied embeddings
    layer_passes: int  # forward passes of blocks (as many backward ones follow)


def class_seconds(
    pricer: Pricer, start: int, stop: int, direction: str
) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Seconds of every class of ops of atoms [start, stop) in one pass under the first layout, [CLASSES]."""
    total = np.zeros(len(CLASSES))
    counts: dict[Atom, int] = {}
    for atom in pricer.stage_atoms(start, stop):
        counts[atom] = counts.get(atom, 0) + 1
    for atom, count in counts.items():
        for op in pricer.program(atom, direction).ops:
            total[op.kind] += count * float(op.seconds[0])
        if direction == "last":
            total[CLASSES.index("data_parallel")] += count * float(reduced_apart_s(pricer.setting, atom)[0])
    return total


def parts_of(step: LoweredStep, lowering: Lowering, step_s: float) -> StepParts:
    """The parts of a played step."""
    times, passes = step.times, step.pipeline.microbatches
    backward_s = times.backward_input_s + times.backward_weight_s
    busy = passes * (times.forward_s + backward_s).sum(axis=1) + times.sync_s + times.optimizer_s
    stage = int(np.argmax(busy))
    noun = step.pipeline.stages[stage]
    pricer = lowering.prices.pricer(
        lowering.placement.island(noun.ranks), noun.layout, step.pipeline.microbatch
    )
    total, blocks = np.zeros(len(CLASSES)), 0
    for start, stop in atoms_held(noun, lowering.prices.model.layers):
        total += passes * class_seconds(pricer, start, stop, "forward")
        total += (passes - 1) * class_seconds(pricer, start, stop, "backward")
        total += class_seconds(pricer, start, stop, "last")
        blocks += sum(isinstance(atom, Block) for atom in pricer.atoms[start:stop])
    by_class = dict(zip(CLASSES, total.tolist(), strict=True))
    sends = times.send_forward_s[stage] + times.send_backward_s[stage]
    return StepParts(
        **{f"{name}_s": seconds for name, seconds in by_class.items()},
        pass_s=float(busy[stage] - times.sync_s[stage] - times.optimizer_s[stage]),
        sync_s=float(times.sync_s[stage]),
        optimizer_s=float(times.optimizer_s[stage]),
        send_s=float(passes * sends * times.forward_s.shape[1]),
        idle_s=max(step_s - float(busy[stage]), 0.0),
        layer_passes=passes * blocks,
    )
