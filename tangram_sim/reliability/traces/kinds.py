"""Kinds of operations in a training step, as step traces name them.

Codes and long names are those of the published traces (github:ByteDance-Seed/StragglerAnalysis, Apache-2.0;
arXiv 2505.05713): one operation of each kind per rank and step, or per microbatch where `per_microbatch`.
"""

from dataclasses import dataclass
from enum import Enum

from tangram_sim.errors import unknown_name


class StartScope(Enum):
    """The ranks that start a kind of operation together."""

    RANK = "the rank alone"
    NEIGHBOURS = "a sender and its receiver"
    ENDS = "first and last stage of a replica"
    REPLICAS = "one stage of all replicas"
    ALL = "all ranks"


@dataclass(frozen=True, slots=True)
class OpKind:
    """One kind of operation: its code in traces, its name in reports, the ranks that start it together."""

    code: str
    name: str
    scope: StartScope
    computes: bool = False  # work of the rank itself: what is usual is its mean, of transfers the median


KINDS = (
    OpKind("AG", "params-all-gather", StartScope.REPLICAS),
    OpKind("FR", "forward-pp-comm", StartScope.NEIGHBOURS),
    OpKind("F", "forward-compute", StartScope.RANK, computes=True),
    OpKind("FS", "forward-pp-comm", StartScope.NEIGHBOURS),
    OpKind("BR", "backward-pp-comm", StartScope.NEIGHBOURS),
    OpKind("B", "backward-compute", StartScope.RANK, computes=True),
    OpKind("BS", "backward-pp-comm", StartScope.NEIGHBOURS),
    OpKind("LN", "layernorm-grads-all-reduce", StartScope.RANK),
    OpKind("EM", "embedding-grads-all-reduce", StartScope.ENDS),
    OpKind("RS", "grads-reduce-scatter", StartScope.REPLICAS),
    OpKind("CL", "optimizer-clip-main-grad", StartScope.ALL),
    OpKind("OP", "optimizer", StartScope.RANK, computes=True),
)
CODES = {kind.code: index for index, kind in enumerate(KINDS)}


def code_of(text: str) -> int:
    """Index into `KINDS` of an operation's code, such as `F`; raises `UnknownNameError`."""
    index = CODES.get(text)
    if index is None:
        raise unknown_name("operation", text, CODES, "A step trace holds these codes in its column `op`.")
    return index
