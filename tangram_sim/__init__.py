"""tangram-sim: plan and simulate LLM training on clusters of unequal GPUs."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

try:
    __version__ = version("tangram-sim")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "Job",
    "Uniform",
    "__version__",
    "estimate",
    "estimate_many",
    "load_cluster",
    "load_model",
    "plan",
    "simulate",
]

# The five-line form of the README; resolved on first use so that `import tangram_sim` stays light.
_PUBLIC = {
    "Job": ("tangram_sim.training.job", "Job"),
    "load_cluster": ("tangram_sim.hwdb", "load_cluster"),
    "load_model": ("tangram_sim.hwdb", "load_model"),
    "plan": ("tangram_sim.studies.api", "plan"),
    "estimate": ("tangram_sim.studies.api", "estimate"),
    "estimate_many": ("tangram_sim.studies.api", "estimate_many"),
    "Uniform": ("tangram_sim.planners.uniform.layouts", "Uniform"),
    "simulate": ("tangram_sim.studies.api", "simulate"),
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tangram_sim' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _PUBLIC[name]
    return getattr(import_module(module), attribute)
