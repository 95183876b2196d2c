"""The verbs of `tangram rl` in Python: `ts.rl.plan("qwen2.5-7b", "h800-h20", prompts=512)`.

Keyword arguments are the fields of the verb's question (`help(tangram_sim.questions.rl.RlPlanQuestion)`), and
answers the documents that `--json` prints.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tangram_sim.errors import unknown_name
from tangram_sim.fields import built, leaves
from tangram_sim.questions.question import question_type

if TYPE_CHECKING:
    from tangram_sim.studies.rl_documents import (
        RlCompareDocument,
        RlPlanDocument,
        RlSimulateDocument,
        RlWhatIfDocument,
    )


def _answer(verb: str, given: dict[str, Any]) -> Any:
    """The answer to a verb's question. Raises UnknownNameError for a field that it does not have."""
    of = question_type(f"rl {verb}")
    known = [leaf.name for leaf in leaves(of)]
    for name, value in given.items():
        if name not in known:
            raise unknown_name(f"argument of rl.{verb}", name, known)
        if isinstance(value, list):
            given[name] = tuple(value)
    return built(of, given).answer()


def plan(model: str, fleet: str, **fields: Any) -> "RlPlanDocument":
    """Which GPUs of `fleet` generate and which train. Raises InfeasibleError where no placement fits."""
    found: RlPlanDocument = _answer("plan", {"model": model, "fleet": fleet, **fields})
    return found


def estimate(model: str, fleet: str, **fields: Any) -> "RlPlanDocument":
    """Seconds of a step of given pools and layouts. Raises InfeasibleError naming the phase."""
    found: RlPlanDocument = _answer("estimate", {"model": model, "fleet": fleet, **fields})
    return found


def compare(model: str, fleet: str, **fields: Any) -> "RlCompareDocument":
    """The best placement beside other rules. Raises InfeasibleError where no placement fits."""
    found: RlCompareDocument = _answer("compare", {"model": model, "fleet": fleet, **fields})
    return found


def what_if(model: str, fleet: str, add: Sequence[str], **fields: Any) -> "RlWhatIfDocument":
    """The best step with each of some additions, e.g. `add=["H20x8:2"]`. Raises InfeasibleError."""
    found: RlWhatIfDocument = _answer("what-if", {"model": model, "fleet": fleet, "add": add, **fields})
    return found


def purchase(model: str, fleet: str, offer: Sequence[str], **fields: Any) -> "RlWhatIfDocument":
    """Numbers of each offered node, by USD per million trained tokens. InfeasibleError if none fits."""
    found: RlWhatIfDocument = _answer("purchase", {"model": model, "fleet": fleet, "offer": offer, **fields})
    return found


def simulate(path: Path, **fields: Any) -> "RlSimulateDocument":
    """Simulate a plan file with repeatedly sampled response lengths. Raises BadInputError for other files."""
    found: RlSimulateDocument = _answer("simulate", {"plan": Path(path), **fields})
    return found
