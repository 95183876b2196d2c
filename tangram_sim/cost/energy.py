"""Joules and watts of one GPU: power while kernels run, plus that of arithmetic, memory and links.

Each unit's power at its datasheet rate is a share of the board's limit (`hwdb/efficiency/power.csv`), so a
kind without measurements inherits the shares of its architecture with its own limit and rates. Clocks under a
power cap follow an assumed curve: the energy of an operation is proportional to the square of the clock.
"""

from dataclasses import dataclass

import numpy as np

from tangram_sim.clusters import Gpu
from tangram_sim.cost.kernels import Floats, Number
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb

LEAST_CLOCK = 0.3  # of the highest: what drivers let a clock sink to, about 500 of 1,755 MHz on an H100
# Standard deviation of what a power cap slows, as a share of the predicted logarithm. The one published
# figure (docs/serving/energy.md) has prompts take 1.30 times as long where 1.16 is predicted:
# log 1.30 / log 1.16 - 1.
CURVE_SPREAD = 0.77


@dataclass(frozen=True, slots=True)
class Activity:
    """Work of one GPU during `seconds`: seconds of each unit at its datasheet rate, numbers or arrays.

    `running_s` is the part of `seconds` in which kernels are resident, including waiting ones.
    """

    seconds: Number
    running_s: Number
    arithmetic_s: Number = 0.0
    memory_s: Number = 0.0
    link_s: Number = 0.0


@dataclass(frozen=True, slots=True)
class GpuPower:
    """Watts of one GPU, or of an array of GPUs, and of its share of the host.

    The last four are added in proportion to the time that the unit is busy.
    """

    limit_w: Number  # of the board, as sold
    idle_w: Number
    host_w: float  # of the node beside its GPUs, a GPU's share
    running_w: Number  # added while kernels are resident
    arithmetic_w: Number
    memory_w: Number
    link_w: Number
    sigma: float  # standard deviation of the logarithm of mean watts
    basis: str  # what the shares rest on

    def joules(self, activity: Activity, clock: Number = 1.0) -> Floats:
        """Joules of one GPU without host at a `clock` relative to the highest; at most the board's limit.

        `activity.arithmetic_s` counts seconds at the datasheet's clock whatever `clock` is.
        """
        square = np.square(clock)
        drawn = (
            self.idle_w * np.asarray(activity.seconds)
            + self.running_w * clock * square * activity.running_s
            + self.arithmetic_w * square * activity.arithmetic_s
            + self.memory_w * activity.memory_s
            + self.link_w * activity.link_s
        )
        return np.asarray(np.minimum(drawn, self.limit_w * np.asarray(activity.seconds)))

    def watts(self, activity: Activity, clock: Number = 1.0) -> Floats:
        """Mean watts of one GPU without its host over `activity.seconds`."""
        return np.asarray(self.joules(activity, clock) / activity.seconds)


def gpu_power(gpu: Gpu, hwdb: Hwdb) -> GpuPower:
    """Power of `gpu` by kind of activity. Raises BadInputError where its power limit is not known."""
    if not gpu.power_w:
        raise BadInputError(f"the power of {gpu.name} is not known; give its board power (`power_w`)")
    shares, sigma, basis = hwdb.power_shares(gpu)
    watts = {name: share * gpu.power_w for name, share in shares.items()}
    return GpuPower(
        limit_w=gpu.power_w,
        idle_w=watts["idle"],
        host_w=watts["host"],
        running_w=watts["running"],
        arithmetic_w=watts["arithmetic"],
        memory_w=watts["memory"],
        link_w=watts["link"],
        sigma=sigma,
        basis=basis,
    )
