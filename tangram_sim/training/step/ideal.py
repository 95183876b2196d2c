"""Minimum computation of training: floating-point operations, and a lower bound on any layout's seconds."""

from functools import lru_cache

import numpy as np

from tangram_sim.clusters import Gpu, Island, Link
from tangram_sim.cost.kernels import attention_flop, visible_keys
from tangram_sim.hwdb import Hwdb
from tangram_sim.layers import products
from tangram_sim.layers.atoms import Atom, Embedding, Head, atoms_of
from tangram_sim.layers.products import Gemm
from tangram_sim.layouts import Layout
from tangram_sim.models import Block, Experts, FeedForward, Model
from tangram_sim.training.job import Job
from tangram_sim.training.stage import gemms
from tangram_sim.training.stage.attention import attention_backward
from tangram_sim.training.stage.block import block_times
from tangram_sim.training.stage.experts import weight_cast_bytes
from tangram_sim.training.stage.model_ends import logit_gemms, loss_s
from tangram_sim.training.stage.setting import Setting


def lone_setting(model: Model, gpu: Gpu, job: Job, hwdb: Hwdb) -> Setting:
    """The setting of one sequence on one GPU, for quantities that are linear in tokens."""
    alone = Island(
        gpu.name,
        gpu,
        nodes=1,
        gpus_per_node=1,
        intra=Link("none", "none", 0.0, 0.0),
        nic_bytes_per_s=0.0,
        nic_latency_s=0.0,
    )
    return Setting(model, alone, job, 1, (Layout(),), hwdb)


def _gemms(setting: Setting, atom: Atom) -> list[Gemm]:
    if isinstance(atom, Embedding):
        return []
    if isinstance(atom, Head):
        return logit_gemms(setting)
    found = products.input_projections(setting, atom.attention) + products.output_projection(
        setting, atom.attention
    )
    part = atom.feed_forward
    if isinstance(part, FeedForward):
        return found + products.up_projection(setting, part) + products.down_projection(setting, part)
    rows = gemms.balanced_rows(setting, part)
    found += gemms.expert_up(setting, part, rows) + gemms.expert_down(setting, part, rows)
    found.append(Gemm(setting.tokens, part.experts, setting.model.hidden))
    if part.shared_width:
        shared = FeedForward(part.shared_width, part.gated)
        found += products.up_projection(setting, shared) + products.down_projection(setting, shared)
    return found


def _attention_flop(setting: Setting, atom: Atom) -> float:
    if not isinstance(atom, Block):
        return 0.0
    attention, seq = atom.attention, setting.job.attended
    seen = visible_keys(seq, attention.window, attention.causal)
    flop = attention_flop(setting.tokens, seen, attention.heads, attention.head_dim, attention.value_dim)
    return float(flop[0])


def _gemm_flop(setting: Setting, atom: Atom) -> float:
    return sum(
        float(np.sum(2.0 * gemm.rows * gemm.n * gemm.k * gemm.count)) for gemm in _gemms(setting, atom)
    )


def model_flop(model: Model, job: Job, gpu: Gpu, hwdb: Hwdb) -> float:
    """Floating-point operations that the model needs for a step: three times forward, without recomputation.

    Frozen weights (adapters) have no weight-gradient products.

    Matrix products including the head, and attention without the part that a causal mask removes: the
    convention of MFU in Chowdhery et al. (arXiv:2204.02311), with the causal half left out.
    """
    setting = lone_setting(model, gpu, job, hwdb)
    needed = {
        atom: (2.0 + job.trainable) * _gemm_flop(setting, atom) + 3.0 * _attention_flop(setting, atom)
        for atom in set(atoms_of(model))
    }
    return job.global_batch * sum(needed[atom] for atom in atoms_of(model))


@lru_cache(maxsize=4096)
def _ideal(model: Model, gpu: Gpu, job: Job, hwdb: Hwdb) -> tuple[float, ...]:
    setting = lone_setting(model, gpu, job, hwdb)
    rates = setting.rates
    seconds: dict[Atom, float] = {}
    for atom in dict.fromkeys(atoms_of(model)):
        total = (2.0 + job.trainable) * _gemm_flop(setting, atom) / rates.gemm_flop_per_s
        if isinstance(atom, Head):
            total += float(loss_s(setting)[0] - rates.launch_s) * (5.0 / 3.0)
        if isinstance(atom, Block):
            times = block_times(setting, atom)
            core = float(times.attention.last[0]) - (1 if rates.fused_attention else 3) * rates.launch_s
            total += core * (1.0 + attention_backward(setting))
            streamed = 2 * float(times.norm[0]) + float(times.activation[0]) - 3 * rates.launch_s
            if isinstance(atom.feed_forward, Experts):  # weights are converted once for any number of tokens
                cast_bytes = float(weight_cast_bytes(setting, atom.feed_forward)[0])
                streamed -= cast_bytes / rates.memory_bytes_per_s
            total += 2.5 * streamed
        seconds[atom] = max(total, 1e-12)
    return tuple(seconds[atom] for atom in atoms_of(model))


def ideal_seconds(model: Model, gpu: Gpu, job: Job, hwdb: Hwdb) -> tuple[float, ...]:
    """Lower bound per atom on the GPU-seconds of one sequence on `gpu`, forward and backward.

    Arithmetic at the effective rates and unavoidable memory traffic, perfectly divided; no launches, no
    weight traffic, no communication. The ranks of every layout together need at least this.
    """
    return _ideal(model, gpu, job, hwdb)
