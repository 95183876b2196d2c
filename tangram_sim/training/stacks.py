"""Software stacks by name, and how the code of each differs on any hardware."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Code:
    """What a training stack's code does, whatever its kernel and link speeds. False: the basic method."""

    # Full recomputation ends as soon as everything the backward pass reads is there again: torch's checkpoint
    # without re-entrance (`early_stop`, PyTorch 2.1), and XLA, which drops what nothing reads.
    stops_early: bool = False
    # One kernel for scale, mask and softmax of unfused attention, for 16-bit numbers: Megatron's.
    fused_softmax: bool = False
    # Context parallelism exchanges heads for tokens (DeepSpeed Ulysses) instead of passing keys around.
    exchanges_heads: bool = False
    # Transformer Engine's ring attention: its steps alternate between two streams, so that one fills what
    # another leaves idle, and one kernel adds a partial result in the width of activations.
    streamed_ring: bool = False
    # ZeRO-1 hands updated weights out by one broadcast from every rank that owns a shard, one after another
    # (InternEvo, `HybridZeroOptimizer._broadcast_params`), instead of one collective.
    broadcasts_shards: bool = False
    # Stages compute nothing while they send: DeepSpeed's pipeline engine calls the blocking send on the
    # stream of its kernels (`deepspeed/runtime/pipe/p2p.py`).
    blocks_on_sends: bool = False
    # Gradients are reduced over data parallelism where nothing is computed beside it. Megatron-LM before
    # `--overlap-grad-reduce` (September 2023): `allreduce_gradients` behind the last pass (v2.0 to v3.0,
    # megatron/training.py). DeepSpeed: `ReduceGrads` behind the last backward of a pipeline (v0.3
    # runtime/pipe/engine.py); without one on the stream of the kernels, unless `overlap_comm` is set, which
    # defaults to off below ZeRO-3 (runtime/zero/config.py).
    reduces_apart: bool = False
    # Tied matrices are exchanged in the type of activations: DeepSpeed's pipeline engine, `fp32_allreduce`
    # or not (`ReduceTiedGrads`).
    ties_as_computed: bool = False
    # A backward pass reduces a gradient over tensor parallelism behind the product's weight gradient,
    # blocking: autograd functions of Megatron-LM 1.1.5 and 2.x (`megatron/mpu/mappings.py`, in DachengLi1/AMP
    # and bigscience-workshop/Megatron-DeepSpeed). Megatron-LM runs both at once since 2022.
    reduces_late: bool = False
    # Products add weight gradients to those of the microbatches before (Megatron's fused accumulation, XLA's
    # loops); elsewhere autograd adds them with a kernel of its own.
    fuses_accumulation: bool = False
    # Local experts run as one grouped product; elsewhere each expert's kernels are launched. On FSDP2 by
    # `torch._grouped_mm` (pytorch/torchtitan, NVIDIA-NeMo/Automodel: `experts: torch_mm`).
    groups_experts: bool = False
    # Exchanges send a token to a scale-up domain once (DeepEP in Megatron-Core, and in the recipes of
    # NVIDIA-NeMo/Automodel on FSDP2: `enable_deepep`, `dispatcher: hybridep`). NeMo's recipes leave them off:
    # DeepSeek-V3 over 128 H100 nodes takes what plain exchanges take (-2 %; sent once, -20 %).
    sends_once: bool = False
    # Exchanges of experts run beside the passes of another microbatch, where stages are interleaved
    # (Megatron-Core's `--overlap-moe-expert-parallel-comm`, which recipes of Megatron-Bridge set).
    overlaps_experts: bool = False
    # The loss works in place on one fp32 copy of the logits: Megatron's, XLA's, FlashAttention's, compiled
    # ones. PyTorch's keeps the softmax's logarithms: three copies with their gradient and that of the logits.
    fuses_loss: bool = False
    # Norms and activation functions are written as plain tensor operations, of which autograd keeps every
    # operand: Hugging Face's LlamaRMSNorm and LlamaMLP, PaddleNLP's.
    plain_norms: bool = False
    # Under sequence parallelism a product's input is kept as gathered: PyTorch's DTensor. Megatron gathers it
    # again in the backward pass.
    keeps_gathered: bool = False
    # An optimizer step over reading and writing every state once: many small kernels unscale, take norms,
    # update moments and cast.
    optimizer_passes: float = 1.0


_CORE = Code(
    fused_softmax=True,
    streamed_ring=True,
    fuses_accumulation=True,
    groups_experts=True,
    sends_once=True,
    fuses_loss=True,
)
_PIPELINE_ENGINE = Code(blocks_on_sends=True, reduces_apart=True, ties_as_computed=True, fuses_loss=True)
_XLA = Code(stops_early=True, fuses_accumulation=True, groups_experts=True, fuses_loss=True)
_AMP = replace(_PIPELINE_ENGINE, fused_softmax=True, reduces_late=True)

# Every stack that rows of hwdb/efficiency may be about; `generic` is one that nobody measured.
_CODE = {
    "generic": _CORE,
    "megatron": _CORE,
    "megatron-deepspeed": replace(
        _PIPELINE_ENGINE, fused_softmax=True, exchanges_heads=True, reduces_late=True
    ),
    "nemo": replace(_CORE, sends_once=False),
    # NeMo's successor: recipes of mixtures dispatch by DeepEP and, on NVLink domains, HybridEP
    # (NVIDIA-NeMo/Megatron-Bridge, scripts/performance: `moe_flex_dispatcher_backend`).
    "megatron-bridge": replace(_CORE, overlaps_experts=True),
    "fsdp": Code(
        stops_early=True, groups_experts=True, sends_once=True, fuses_loss=True, keeps_gathered=True
    ),
    # No runs of its own: efficiencies of its lineage, whose engine waits for its reductions.
    # Models under it are Hugging Face's.
    "deepspeed": replace(_PIPELINE_ENGINE, exchanges_heads=True, fuses_loss=False, plain_norms=True),
    # No row of the database is about it: its efficiencies are those of `generic`.
    "deepspeed-pipeline": replace(_PIPELINE_ENGINE, fused_softmax=True),
    "jax": _XLA,
    "internevo": Code(broadcasts_shards=True, fuses_loss=True),
    "pytorch": Code(fuses_loss=True),
    "paddle": Code(plain_norms=True),  # efficiencies of `generic`, too
    "megatron-lm": replace(_CORE, sends_once=False, reduces_apart=True),
    "amp": _AMP,
    # A layer's update in the profiles of eth-easl/sailor cf2c8e3 over one pass through memory: 10.0 to 14.6
    # on six GPU kinds (traces/sailor).
    "sailor": replace(_PIPELINE_ENGINE, optimizer_passes=11.7),
    "pax": _XLA,
}
STACKS = tuple(_CODE)

# Variants of a stack whose rows were fitted under another way of playing: sends are in its schedule.
_VARIANTS = {"amp-pipe": replace(_AMP, blocks_on_sends=False, reduces_late=False)}


def code_of(stack: str) -> Code:
    """Properties of a stack's code; of an unknown stack, all basic."""
    return _CODE.get(stack) or _VARIANTS.get(stack, Code())
