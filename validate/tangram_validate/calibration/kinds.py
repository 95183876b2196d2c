"""Which GPU kinds were measured, which share a chip with one that was, and by whom they were measured."""

from collections.abc import Mapping
from typing import NamedTuple


class Sibling(NamedTuple):
    """A GPU kind on the chip of a measured one, and how well constants carry over to it."""

    name: str
    of: str  # the measured kind
    sigma: float  # added relative standard error (in quadrature)


# Folder of aiconfigurator-core -> row of gpus.csv. Its tables name the device in column `device`.
SYSTEMS: Mapping[str, str] = {
    "a100_sxm": "A100-SXM4-80GB",
    "h100_sxm": "H100-SXM5-80GB",
    "h200_sxm": "H200-SXM-141GB",
    "b200_sxm": "B200-HGX",
    "gb200": "GB200",
    "b300_sxm": "B300-HGX",
    "gb300": "GB300",
    "l40s": "L40S",
    "rtx_pro_6000_server": "RTX-PRO-6000-Blackwell-Server",
}

# Module of the same class on the same chip: the measured pairs of that sort (H100 and H200, B200 and
# GB200, B300 and GB300) differ by 3 % at most. A PCIe card or a power cap of its own moves the clock.
SAME_MODULE, OTHER_POWER = 0.03, 0.10
SIBLINGS: tuple[Sibling, ...] = (
    Sibling("A100-SXM4-40GB", "A100-SXM4-80GB", SAME_MODULE),
    Sibling("A800-SXM4-80GB", "A100-SXM4-80GB", SAME_MODULE),
    Sibling("A100-PCIe-80GB", "A100-SXM4-80GB", OTHER_POWER),
    Sibling("A100-PCIe-40GB", "A100-SXM4-80GB", OTHER_POWER),
    Sibling("A800-PCIe-80GB", "A100-SXM4-80GB", OTHER_POWER),
    Sibling("H100-SXM5-96GB", "H100-SXM5-80GB", SAME_MODULE),
    Sibling("H100-SXM5-94GB", "H100-SXM5-80GB", SAME_MODULE),
    Sibling("H100-SXM5-64GB", "H100-SXM5-80GB", SAME_MODULE),
    Sibling("H800-SXM5-80GB", "H100-SXM5-80GB", SAME_MODULE),
    Sibling("GH200-96GB", "H100-SXM5-80GB", OTHER_POWER),
    Sibling("GH200-144GB", "H200-SXM-141GB", OTHER_POWER),
    Sibling("H100-NVL-94GB", "H100-SXM5-80GB", OTHER_POWER),
    Sibling("H100-PCIe-80GB", "H100-SXM5-80GB", OTHER_POWER),
    Sibling("H800-PCIe-80GB", "H100-SXM5-80GB", OTHER_POWER),
    Sibling("H200-NVL-141GB", "H200-SXM-141GB", OTHER_POWER),
    Sibling("B100", "B200-HGX", OTHER_POWER),
    Sibling("RTX-6000-Ada", "L40S", OTHER_POWER),
)
# Not siblings, though of the chip: A30 (half of it, at 165 W), H20 (its peak is capped), L40, RTX-4090 and
# RTX-5090 (their rows count half the rate per unit and clock, so what is reached of it is another fraction).


class Sustained(NamedTuple):
    """A second public table's GEMM efficiency for a measured GPU kind, for comparison."""

    efficiency: float  # of the peak, median over its large shapes
    source: str


# (folder of aiconfigurator-core, dtype) -> a second opinion. Short loops keep a clock that a step's products
# lose to the board's power cap: 0.49 to 0.51 of the peak forward and 0.455 for weight gradients, at 4,096
# tokens and widths of 8,192 and more; products a tenth as long reach 0.6 and more in the same table.
SUSTAINED: Mapping[tuple[str, str], Sustained] = {
    ("b200_sxm", "bf16"): Sustained(
        0.478, "MooreThreads/SimuMax e691807 configs/system/b200_bf16_ceperm.json"
    ),
}


class Profiled(NamedTuple):
    """A GPU kind as the layer profiles name it."""

    name: str  # row of gpus.csv
    dtype: str  # what the matrix products ran in; the profiles do not say (see profiles.py)
    note: str = ""
    stack: str = "generic"  # whose kernels they are, where other ones are known to be faster


OWN_KERNELS = "with that software's element-wise kernels, which are not fused"
# Name in the layer profiles -> kind.
PROFILED: Mapping[str, Profiled] = {
    "V100-16": Profiled("V100-SXM2-16GB", "fp32"),
    "Titan-RTX": Profiled("Titan-RTX", "fp32"),
    "RTX-2080": Profiled(
        "RTX-2080Ti",
        "fp32",
        "the source writes RTX-2080; speed and memory rate beside the Titan-RTX are those of the Ti",
    ),
    "RTX-3090": Profiled("RTX-3090", "tf32", "fp32 and tf32 peaks are equal on this device"),
    "A100-80": Profiled("A100-SXM4-80GB", "tf32", OWN_KERNELS, "sailor"),
    "GH-96": Profiled("GH200-96GB", "tf32", OWN_KERNELS, "sailor"),
}
# Same chip and class of board: a constant of the left one stands for the right one.
PROFILED_SIBLINGS: tuple[Sibling, ...] = (
    Sibling("V100-SXM2-32GB", "V100-SXM2-16GB", SAME_MODULE),
    Sibling("V100-PCIe-16GB", "V100-SXM2-16GB", OTHER_POWER),
    Sibling("V100-PCIe-32GB", "V100-SXM2-16GB", OTHER_POWER),
    Sibling("A100-SXM4-40GB", "A100-SXM4-80GB", SAME_MODULE),
    Sibling("A100-PCIe-80GB", "A100-SXM4-80GB", OTHER_POWER),
    Sibling("A100-PCIe-40GB", "A100-SXM4-80GB", OTHER_POWER),
    Sibling("GH200-144GB", "GH200-96GB", SAME_MODULE),
)
