"""Allowed differences between the GPUs of one island."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Allowed spread over a whole island: max/min <= 1 + tolerance.

    Compute 10 %: variation between devices and jobs of one GPU kind is a few percent, neighbouring kinds
    differ by 1.3 times and more (A100 and V100 by 3, H100-SXM and H100-PCIe by 1.3). Memory 5 %: plans use
    most of it, and sizes on sale differ by a third or more, except near twins (141 and 144 GB). Intra 10 %:
    generations of links differ by 1.5 times and more. The cut of every shipped cluster is the same for half
    and for twice these values (tests/unit/placement/test_islands.py).
    """

    compute: float = 0.10
    memory: float = 0.05
    intra: float = 0.10
