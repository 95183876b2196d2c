"""A transformer block as ops: forward, and backward with recomputation and gradient reduction.

Tensor parallelism and its overlap of weight gradients with the input-gradient reduction follow Shoeybi et
al. (arXiv:1909.08053); sequence parallelism and recomputation Korthikanti et al. (arXiv:2205.05198); ZeRO
Rajbhandari et al. (arXiv:1910.02054); ring attention Liu et al. (arXiv:2310.01889).
"""

from typing import NamedTuple

import numpy as np

from tangram_sim.cost.collectives import all_gather_s, all_reduce_s
from tangram_sim.cost.kernels import Floats, streaming_s
from tangram_sim.layers import products
from tangram_sim.layers.products import KERNELS_FORWARD, NORM_PASSES
from tangram_sim.layers.program import (
    BEFORE_PREVIOUS,
    COMPUTE,
    DATA,
    EXCHANGE,
    PREVIOUS,
    TENSOR,
    Program,
)
from tangram_sim.models import Block, Experts, FeedForward
from tangram_sim.training.stage import gemms
from tangram_sim.training.stage.attention import Core, add_core, cores, ring_kernels
from tangram_sim.training.stage.experts import apart, dispatch_s, expert_kernels, narrow_bytes
from tangram_sim.training.stage.gemms import Passes, passes
from tangram_sim.training.stage.launching import add_launch_gaps, host_s
from tangram_sim.training.stage.reductions import add_reductions
from tangram_sim.training.stage.setting import Setting
from tangram_sim.training.stage.state import (
    accumulation_s,
    plainly_normed,
    sharded_weights_gather_s,
)

# Kernels the host launches per block and backward pass.
KERNELS_BACKWARD = 26
# Passes of 16-bit numbers in place of `NORM_PASSES` where each operation of a norm is a kernel (an fp32 copy,
# its square, its mean, two products, a copy back), and over a gated feed-forward's columns in place of 3.
PLAIN_PASSES, PLAIN_GATED = 21.0, 5.0
# Bytes per number converted, forward; with the backward's share of memory kernels 3.5 in all: reads are
# partly fused into the kernels before.
CAST_BYTES = 1.4


class Times(NamedTuple):
    """Seconds of the parts of one block on one rank. Arrays of K."""

    norm: Floats
    gather: Floats  # all-gather before a column-parallel product (sequence parallelism)
    reduce: Floats  # reduction behind a row-parallel product
    gather_inner: Floats  # the same two around the feed-forward or the experts
    reduce_inner: Floats
    qkv: Passes
    attention: Core
    attention_back: Core
    out: Passes
    up: Passes
    activation: Floats
    down: Passes
    route: Passes  # router and shared experts, nothing for dense blocks
    dispatch: Floats  # all-to-all of tokens to experts


def block_times(setting: Setting, block: Block) -> Times:
    """Seconds of every part of `block`, from which forward and backward programs are built."""
    attention, part = block.attention, block.feed_forward
    model, rates = setting.model, setting.rates
    tokens, width = setting.tokens, setting.job.precision.activation_bytes
    residual_bytes = tokens * model.hidden * width
    sharded = setting.sequence_shards > 1
    zero = np.zeros(len(setting.layouts))
    permuted = zero
    nothing = Passes(zero, zero, zero)
    route, dispatch, copies = nothing, zero, np.ones(1)
    if isinstance(part, Experts):
        rows = gemms.computed_rows(setting, part)
        up = apart(setting, part, passes(setting, gemms.expert_up(setting, part, rows)))
        down = apart(setting, part, passes(setting, gemms.expert_down(setting, part, rows)))
        extra = [products.Gemm(tokens, part.experts, model.hidden)]
        if part.shared_width:
            shared = FeedForward(part.shared_width, part.gated)
            extra += products.up_projection(setting, shared) + products.down_projection(setting, shared)
        route = passes(setting, extra)
        dispatch = dispatch_s(setting, part)
        # Behind the dispatch a token is there once for each of its experts, each copy on tp ranks.
        copies = np.where(setting.ep > 1, part.active, 1)
        # Sorting tokens by expert and back reads and writes each copy, behind an exchange once more.
        sorts = np.where(setting.ep > 1, 2.0, 1.0)
        permuted = sorts * residual_bytes / setting.tp * (2.0 + 2.0 * part.active)
        permuted = permuted + narrow_bytes(setting, part)
        inner = part.active * part.width + part.shared_width
    else:
        up, down = (
            passes(setting, products.up_projection(setting, part)),
            passes(setting, products.down_projection(setting, part)),
        )
        inner = part.width
    plain = plainly_normed(setting, block)
    columns = (PLAIN_GATED if plain else 3.0) if part.gated else 2.0
    activated = setting.sharding.width(tokens * inner) * width * columns
    residual_passes = PLAIN_PASSES if plain else NORM_PASSES
    # A parallel block reads one norm and reduces attention and feed-forward in one collective.
    halves = 0.5 if block.parallel else 1.0
    exposed = rates.tensor_exposed
    core, core_back = cores(setting, block)

    def gather_s(size: Floats) -> Floats:
        return np.where(sharded, all_gather_s(size, setting.tp_group), 0.0) * halves

    def reduce_s(size: Floats) -> Floats:
        whole = all_reduce_s(size, setting.tp_group)
        return np.where(sharded, all_gather_s(size, setting.tp_group), whole) * halves

    return Times(
        norm=streaming_s(residual_passes * residual_bytes / setting.sequence_shards, rates),
        gather=exposed * gather_s(residual_bytes),
        reduce=exposed * reduce_s(residual_bytes),
        gather_inner=exposed * gather_s(residual_bytes * copies),
        reduce_inner=exposed * reduce_s(residual_bytes * copies),
        qkv=passes(setting, products.input_projections(setting, attention)),
        attention=core,
        attention_back=core_back,
        out=passes(setting, products.output_projection(setting, attention)),
        up=up,
        activation=streaming_s(activated + permuted + _cast_bytes(setting, inner), rates),
        down=down,
        route=route,
        dispatch=dispatch,
    )


def _cast_bytes(setting: Setting, inner: float) -> Floats:
    """Bytes moved forward by conversions to a narrow product type; 0 where products run in 16 bits.

    Inputs of attention and feed-forward and the values between its products are read, scaled, and written for
    this pass and, transposed, for the weight gradients.
    """
    if not setting.job.precision.narrow:
        return np.zeros(len(setting.layouts))
    return CAST_BYTES * setting.tokens * (2.0 * setting.model.hidden + setting.sharding.width(inner))


def _forward_ops(
    program: Program,
    times: Times,
    moe: bool,
    scale: Floats,
    *start: int,
    hosted: tuple[int, ...] = (),
    end: float = 1.0,
) -> int:
    """Append the forward ops of a block with durations times `scale` (0 or 1); return the output op.

    They wait for `start`; the last product also for `hosted`, by which the host has launched all kernels. Ops
    after the activation function are also multiplied by `end` (0 or 1).
    """
    add = program.add
    norm = add("norm 1", COMPUTE, "memory", times.norm * scale, *start)
    gather = add("gather 1", TENSOR, "tensor_parallel", times.gather * scale, norm)
    qkv = add("qkv", COMPUTE, "gemm", times.qkv.forward * scale, gather)
    core = add_core(program, times.attention.scaled(scale), "attention", qkv)
    out = add("out", COMPUTE, "gemm", times.out.forward * scale, core)
    reduce = add("reduce 1", TENSOR, "tensor_parallel", times.reduce * scale, out)
    norm = add("norm 2", COMPUTE, "memory", times.norm * scale, reduce)
    ready = add("gather 2", TENSOR, "tensor_parallel", times.gather_inner * scale, norm)
    if moe:
        sent = add("dispatch", EXCHANGE, "expert_parallel", times.dispatch * scale, ready)
        add("router and shared experts", COMPUTE, "gemm", times.route.forward * scale, ready)
        ready = sent
    up = add("up", COMPUTE, "gemm", times.up.forward * scale, ready)
    act = add("activation", COMPUTE, "memory", times.activation * scale, up)
    down = add("down", COMPUTE, "gemm", times.down.forward * scale * end, act, *hosted)
    if moe:
        down = add("combine", EXCHANGE, "expert_parallel", times.dispatch * scale * end, down)
    return add("reduce 2", TENSOR, "tensor_parallel", times.reduce_inner * scale * end, down)


def block_forward(setting: Setting, block: Block, times: Times) -> Program:
    """The forward pass of one block for one microbatch."""
    program = Program(len(setting.layouts))
    gather = program.add(
        "weights", DATA, "data_parallel", sharded_weights_gather_s(setting, block), BEFORE_PREVIOUS
    )
    kernels = KERNELS_FORWARD + ring_kernels(setting, backward=False)
    kernels = kernels + expert_kernels(setting, block, backward=False)
    host = program.add("launch", setting.launch_stream, "dispatch", host_s(setting, kernels))
    moe = isinstance(block.feed_forward, Experts)
    done = _forward_ops(program, times, moe, np.ones(1), PREVIOUS, gather, hosted=(host,))
    add_launch_gaps(program, setting, host, done)
    return program


def _reduced(
    program: Program, half: int, product: Floats, start: int, reduce: Floats, done: int, late: bool
) -> tuple[int, int]:
    """(reduction of a gradient over tensor parallelism, weight gradient of the product before it), as ops.

    `half`: 1 for attention, 2 for the feed-forward. The product of `product` seconds waits for `start`, the
    reduction for `done`; the two overlap unless `late`, when the reduction waits for the product.
    """
    name, label = ("qkv dw", "up dw")[half - 1], f"gradient reduce {half}"
    if late:
        gradients = program.add_weight_gradient(name, product, start)
        return program.add(label, TENSOR, "tensor_parallel", reduce, done, gradients), gradients
    reduced = program.add(label, TENSOR, "tensor_parallel", reduce, done)
    return reduced, program.add_weight_gradient(name, product, start)


def block_backward(setting: Setting, block: Block, times: Times, direction: str) -> Program:
    """The backward pass of one block; direction `last` also reduces gradients accumulated over the step."""
    moe = isinstance(block.feed_forward, Experts)
    program = Program(len(setting.layouts))
    add = program.add
    full, selective, late = setting.recompute == 2, setting.recompute == 1, setting.job.code.reduces_late
    weights = add("weights", DATA, "data_parallel", sharded_weights_gather_s(setting, block), BEFORE_PREVIOUS)
    again = KERNELS_FORWARD + ring_kernels(setting, backward=False) + expert_kernels(setting, block, False)
    kernels = KERNELS_BACKWARD + ring_kernels(setting, backward=True) + expert_kernels(setting, block, True)
    kernels = kernels + np.where(full, again, 0)
    host = add("launch", setting.launch_stream, "dispatch", host_s(setting, kernels))
    end = 0.0 if setting.job.code.stops_early else 1.0
    replayed = _forward_ops(program, times, moe, full.astype(np.float64), weights, end=end)
    start = add("gradient gather 2", TENSOR, "tensor_parallel", times.gather_inner, PREVIOUS, replayed)
    if moe:
        start = add("gradient dispatch", EXCHANGE, "expert_parallel", times.dispatch, start)
    down = add("down dx", COMPUTE, "gemm", times.down.input_gradient, start)
    program.add_weight_gradient("down dw", times.down.weight_gradient, start)
    act = add("activation dx", COMPUTE, "memory", 1.5 * times.activation, down)
    up = add("up dx", COMPUTE, "gemm", times.up.input_gradient, act)
    done = up
    if moe:
        add("router dx", COMPUTE, "gemm", times.route.input_gradient, start)
        program.add_weight_gradient("router dw", times.route.weight_gradient, start)
        done = add("gradient combine", EXCHANGE, "expert_parallel", times.dispatch, up)
    reduced = _reduced(
        program,
        half=2,
        product=times.up.weight_gradient,
        start=act,
        reduce=times.reduce_inner,
        done=done,
        late=late,
    )[0]
    norm = add("norm 2 dx", COMPUTE, "memory", 1.5 * times.norm, reduced)
    gathered = add("gradient gather 1", TENSOR, "tensor_parallel", times.gather, norm)
    out = add("out dx", COMPUTE, "gemm", times.out.input_gradient, gathered)
    program.add_weight_gradient("out dw", times.out.weight_gradient, gathered)
    replay = times.attention.scaled(selective.astype(np.float64))
    scores = add_core(program, replay, "attention again", out)
    core = add_core(program, times.attention_back, "attention dx", scores)
    qkv = add("qkv dx", COMPUTE, "gemm", times.qkv.input_gradient, core)
    reduced, gradients = _reduced(
        program,
        half=1,
        product=times.qkv.weight_gradient,
        start=core,
        reduce=times.reduce,
        done=qkv,
        late=late,
    )
    if direction == "backward":
        gradients = program.add_weight_gradient("accumulate", accumulation_s(setting, block), core)
    norm = add("norm 1 dx", COMPUTE, "memory", 1.5 * times.norm, reduced, host)
    output = add_launch_gaps(program, setting, host, norm)
    program.output = output
    add_reductions(program, setting, block, direction, gradients, output)
    return program
