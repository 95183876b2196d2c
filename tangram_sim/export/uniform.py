"""Whether a framework can run a plan: its uniform set of parallel degrees, or all reasons why not."""

from collections.abc import Sequence
from math import prod

from tangram_sim.errors import TangramError
from tangram_sim.planners.uniform.frameworks import Framework, plan_objections
from tangram_sim.planners.uniform.shape import Shape
from tangram_sim.training.plan import Plan


class CannotExportError(TangramError):
    """A framework cannot express the plan; the message lists every reason."""


def refuse(title: str, reasons: Sequence[str]) -> None:
    """Raise CannotExportError if `reasons` is not empty."""
    if reasons:
        listed = "".join(f"\n  - {reason}" for reason in dict.fromkeys(reasons))
        raise CannotExportError(f"{title} cannot express this plan:{listed}")


def require(framework: Framework, plan: Plan, *, differing: bool = False) -> None:
    """Raise CannotExportError listing every rule of the framework that the plan breaks.

    `differing`: ignore features of the model that the framework lacks.
    """
    reasons = plan_objections(framework, plan, with_model=not differing)
    if plan.job.trainable < 1.0:
        reasons.append(
            f"adapters ({100 * plan.job.trainable:.2g} % of the weights trained): a plan does not say on "
            "which matrices they sit; write the same layout without `lora_rank=` or `trainable=` "
            f"(`tangram estimate ... -o full.json`), export that, and switch adapters on in {framework.title}"
        )
    refuse(framework.label, reasons)


def check_ranks(shape: Shape) -> None:
    """Raise CannotExportError unless the number of ranks is the product of the parallel degrees."""
    degrees = (shape.tp, shape.cp, shape.dp, shape.pp)
    if prod(degrees) != len(shape.ranks) or len(set(shape.ranks)) != len(shape.ranks):
        raise CannotExportError(
            f"tp {shape.tp} x cp {shape.cp} x dp {shape.dp} x pp {shape.pp} is not {len(shape.ranks)} ranks"
        )
