"""Kernel launches of a block: the host's time, and the gaps on a device that does not wait for every launch.

A device that is busier than its host does not hide all launches: long kernels let the host run ahead, but
runs of short ones (norms, activations, casts) end before the next is launched.
"""

import numpy as np

from tangram_sim.cost.kernels import Floats
from tangram_sim.layers.program import COMPUTE, HOST, TENSOR, Program
from tangram_sim.training.stage.setting import Setting

HANDOVER = 3.0
# What eight ranks of tensor parallelism add to each other's host time, and the most ranks that were seen.
WAITING, RANKS = 0.6, 8
LAUNCH_GAPS = "launch gaps"


def host_s(setting: Setting, kernels: float | Floats) -> Floats:
    """Seconds that the host of a rank takes to launch `kernels`, [K].

    Tensor-parallel ranks synchronise four times a block and proceed with the slowest of their hosts: little
    with two or four ranks, much with eight, which use both sockets of a node. A captured block is one launch.
    """
    kernels = 1.0 if setting.job.cuda_graphs else kernels
    ranks = np.minimum(setting.tp, RANKS)
    waits = 1.0 + WAITING * (ranks**2 - 1.0) / (RANKS**2 - 1.0)
    return np.asarray(kernels * waits * setting.rates.dispatch_s)


def gaps_s(host: Floats, device: Floats) -> Floats:
    """Seconds by which a block's time exceeds the larger of its `host` and `device` seconds."""
    longer, shorter = np.maximum(host, device), np.minimum(host, device)
    share = np.divide(shorter, longer, out=np.zeros_like(longer), where=longer > 0)
    gaps: Floats = longer * ((1.0 + share**HANDOVER) ** (1.0 / HANDOVER) - 1.0)
    return gaps


def add_launch_gaps(program: Program, setting: Setting, host: int, done: int) -> int:
    """Append after op `done` the gaps that the launches of op `host` leave; return the last op.

    The gaps delay device and host alike, so that the longer of the two includes them once. Where the device
    waits for every launch anyway there are none.
    """
    if setting.launch_stream != HOST:
        return done
    busy = [op.seconds for op in program.ops if op.stream in (COMPUTE, TENSOR)]
    launching = program.ops[host]
    gaps = gaps_s(launching.seconds, np.sum(busy, axis=0))
    program.ops[host] = launching._replace(seconds=launching.seconds + gaps)
    return program.add(LAUNCH_GAPS, COMPUTE, "dispatch", gaps, done)
