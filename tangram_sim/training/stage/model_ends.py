"""Embedding and head as ops: embedding lookup; final norm, vocabulary projection and loss."""

import numpy as np

from tangram_sim.cost.collectives import all_gather_s, all_reduce_s
from tangram_sim.cost.kernels import Floats, streaming_s
from tangram_sim.layers.atoms import Embedding, Head
from tangram_sim.layers.products import Gemm
from tangram_sim.layers.program import BEFORE_PREVIOUS, COMPUTE, DATA, PREVIOUS, TENSOR, Program
from tangram_sim.training.stage.gemms import passes
from tangram_sim.training.stage.launching import host_s
from tangram_sim.training.stage.reductions import add_reductions
from tangram_sim.training.stage.setting import Setting
from tangram_sim.training.stage.state import MASKED_FRACTION, sharded_weights_gather_s

KERNELS_EMBEDDING, KERNELS_HEAD = 3, 8
# Passes over fp32 logits forward: copied from the product, reduced for the maximum, shifted, exponentiated,
# summed. The gradient takes two thirds of that.
LOSS_PASSES = 6.0


def _residual_bytes(setting: Setting) -> Floats:
    return setting.tokens * setting.model.hidden * setting.job.precision.activation_bytes


def _reduce_s(setting: Setting) -> Floats:
    """Seconds of the reduction after vocabulary- or row-parallel ops: reduce-scatter if sequence-parallel."""
    size = _residual_bytes(setting)
    return np.where(
        setting.sequence_shards > 1,
        all_gather_s(size, setting.tp_group),
        all_reduce_s(size, setting.tp_group),
    )


def embedding_forward(setting: Setting, atom: Embedding) -> Program:
    """Forward pass of the embedding: look up this rank's vocabulary shard and sum over shards."""
    program = Program(len(setting.layouts))
    gather = program.add(
        "weights", DATA, "data_parallel", sharded_weights_gather_s(setting, atom), BEFORE_PREVIOUS
    )
    host = program.add("launch", setting.launch_stream, "dispatch", host_s(setting, KERNELS_EMBEDDING))
    read_s, waits = streaming_s(2.0 * _residual_bytes(setting), setting.rates), (PREVIOUS, gather, host)
    lookup = program.add("lookup", COMPUTE, "memory", read_s, *waits)
    program.add("reduce", TENSOR, "tensor_parallel", _reduce_s(setting), lookup)
    return program


def embedding_backward(setting: Setting, atom: Embedding, direction: str) -> Program:
    """Backward pass of the embedding: scatter gradients into the table (fp32 read-modify-write of rows)."""
    program = Program(len(setting.layouts))
    gather = all_gather_s(_residual_bytes(setting), setting.tp_group)
    start = program.add(
        "gather", TENSOR, "tensor_parallel", np.where(setting.sequence_shards > 1, gather, 0.0), PREVIOUS
    )
    output = program.add(
        "scatter", COMPUTE, "memory", streaming_s(3.0 * _residual_bytes(setting), setting.rates), start
    )
    program.output = output
    add_reductions(program, setting, atom, direction, output)
    return program


def logit_gemms(setting: Setting) -> list[Gemm]:
    """The vocabulary projection, and the one before it where embeddings are narrower than the model."""
    predicted = MASKED_FRACTION if setting.model.masked_lm else 1.0
    model = setting.model
    width = model.embedding_dim or model.hidden
    products = [Gemm(setting.tokens * predicted, setting.sharding.width(model.vocab), width)]
    if width != model.hidden:
        products.append(Gemm(setting.tokens * predicted, width, model.hidden))
    return products


def loss_s(setting: Setting) -> Floats:
    """Seconds of the cross-entropy over this rank's vocabulary shard."""
    predicted = MASKED_FRACTION if setting.model.masked_lm else 1.0
    return streaming_s(
        setting.sharding.width(setting.tokens * predicted * setting.model.vocab) * 4.0 * LOSS_PASSES,
        setting.rates,
    )


def _loss_reduce_s(setting: Setting) -> Floats:
    """Seconds of vocabulary-parallel cross-entropy's all-reduces: maximum, sum, target logit per token."""
    return 3.0 * all_reduce_s(setting.tokens * 4.0, setting.tp_group)


def head_forward(setting: Setting, atom: Head) -> Program:
    """Forward pass of the head: final norm, logits and loss."""
    program = Program(len(setting.layouts))
    residual = _residual_bytes(setting)
    gather_s = np.where(setting.sequence_shards > 1, all_gather_s(residual, setting.tp_group), 0.0)
    weights = program.add(
        "weights", DATA, "data_parallel", sharded_weights_gather_s(setting, atom), BEFORE_PREVIOUS
    )
    host = program.add("launch", setting.launch_stream, "dispatch", host_s(setting, KERNELS_HEAD))
    norm = program.add(
        "final norm",
        COMPUTE,
        "memory",
        streaming_s(3.0 * residual / setting.sequence_shards, setting.rates),
        PREVIOUS,
    )
    gather = program.add("gather", TENSOR, "tensor_parallel", gather_s, norm)
    logits = program.add(
        "logits",
        COMPUTE,
        "gemm",
        passes(setting, logit_gemms(setting), quantised=False).forward,
        gather,
        weights,
    )
    loss = program.add("loss", COMPUTE, "memory", loss_s(setting), logits, host)
    program.add("loss reduce", TENSOR, "tensor_parallel", _loss_reduce_s(setting), loss)
    return program


def head_backward(setting: Setting, atom: Head, direction: str) -> Program:
    """Backward pass of the head: loss, vocabulary projection and final norm."""
    program = Program(len(setting.layouts))
    residual = _residual_bytes(setting)
    logits = passes(setting, logit_gemms(setting), quantised=False)
    weights = program.add(
        "weights", DATA, "data_parallel", sharded_weights_gather_s(setting, atom), BEFORE_PREVIOUS
    )
    start = program.add("loss dx", COMPUTE, "memory", loss_s(setting) * (2.0 / 3.0), PREVIOUS)
    inputs = program.add("logits dx", COMPUTE, "gemm", logits.input_gradient, start, weights)
    reduced = program.add("gradient reduce", TENSOR, "tensor_parallel", _reduce_s(setting), inputs)
    gradients = program.add_weight_gradient("logits dw", logits.weight_gradient, start)
    output = program.add(
        "final norm dx",
        COMPUTE,
        "memory",
        streaming_s(4.5 * residual / setting.sequence_shards, setting.rates),
        reduced,
    )
    program.output = output
    add_reductions(program, setting, atom, direction, gradients, output)
    return program
