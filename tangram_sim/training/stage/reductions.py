"""Synchronisation of an atom's gradients at the end of its backward program, by direction.

Directions of programs and simulated passes: `forward`; `backward`, of a microbatch followed by others;
`last`, the backward that ends a step; and `backwards`, both of these at once where they differ only in what
they synchronise.
"""

from tangram_sim.layers.atoms import Atom
from tangram_sim.layers.program import Program
from tangram_sim.training.job import Job
from tangram_sim.training.stage.setting import Setting
from tangram_sim.training.stage.state import gradient_sync_s


def backward_directions(job: Job) -> tuple[str, str]:
    """(direction of backwards that others follow, direction of the last); equal where one pass gives both."""
    alike = job.code.fuses_accumulation and not job.reduces_apart
    return ("backwards", "backwards") if alike else ("backward", "last")


def add_reductions(program: Program, setting: Setting, atom: Atom, direction: str, *after: int) -> None:
    """Append the synchronisation of the gradients of `atom`, which waits for the ops `after`."""
    each = gradient_sync_s(setting, atom, last=direction == "last")
    closing = gradient_sync_s(setting, atom, last=True) if direction == "backwards" else None
    apart = setting.job.reduces_apart
    program.add_gradients(each, setting.zero == 3, *after, closing=closing, apart=apart)
