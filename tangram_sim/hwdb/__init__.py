"""The hardware database and its files: GPUs, links, nodes, efficiencies, clusters, models.

The only package that opens the folder `hwdb`. Cluster and model files need pydantic and yaml, so they are
imported on first use.
"""

from typing import TYPE_CHECKING, Any

from tangram_sim.hwdb.database import Hwdb
from tangram_sim.hwdb.efficiency import DTYPES, Efficiency, FittedValue
from tangram_sim.hwdb.reads import ReadSet
from tangram_sim.hwdb.tables import Row

if TYPE_CHECKING:
    from tangram_sim.hwdb.cluster_file import cluster_from_dict, cluster_names, cluster_to_dict, load_cluster
    from tangram_sim.hwdb.models import load_model, model_names

__all__ = [
    "DTYPES",
    "Efficiency",
    "FittedValue",
    "Hwdb",
    "ReadSet",
    "Row",
    "cluster_from_dict",
    "cluster_names",
    "cluster_to_dict",
    "load_cluster",
    "load_model",
    "model_names",
]

_LATER = {
    "cluster_from_dict": "cluster_file",
    "cluster_names": "cluster_file",
    "cluster_to_dict": "cluster_file",
    "load_cluster": "cluster_file",
    "load_model": "models",
    "model_names": "models",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'tangram_sim.hwdb' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"tangram_sim.hwdb.{_LATER[name]}"), name)
