"""How new a run is to what the stacks were fitted to: its stack, and the GPU generation under that stack."""

import numpy as np
from numpy.typing import NDArray

from tangram_validate.published.stacks import lineage

# From what is known best to what is not known at all. Mixtures of experts are told apart beside this.
CLASSES = ("known stack and GPU", "known stack, new GPU", "sister stack", "new stack")

Names = NDArray[np.str_]


def novelty(stack: Names, generation: Names, use: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Entry of CLASSES of every run [N], seen from the runs in use."""
    seen = set(zip(stack[use].tolist(), generation[use].tolist(), strict=True))
    stacks = {item for item, _ in seen}
    lineages = {lineage(item) for item in stacks} - {""}
    return np.array(
        [_class(own, kind, seen, stacks, lineages) for own, kind in zip(stack, generation, strict=True)],
        np.int64,
    )


def _class(
    stack: str, generation: str, seen: set[tuple[str, str]], stacks: set[str], lineages: set[str]
) -> int:
    if stack in stacks and stack != "generic":
        return 0 if (stack, generation) in seen else 1
    return 2 if lineage(stack) in lineages else 3
