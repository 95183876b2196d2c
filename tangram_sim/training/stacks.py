"""Software stacks by name, and what the code of each does differently whatever the hardware."""

# Every stack that rows of hwdb/efficiency may be about; `generic` is one that nobody measured.
STACKS = (
    "generic",
    "megatron",
    "megatron-deepspeed",
    "nemo",
    "fsdp",
    "deepspeed",
    "deepspeed-pipeline",
    "jax",
    "internevo",
    "pytorch",
    "megatron-lm",
    "amp",
    "sailor",
    "pax",
)

# Stacks whose full recomputation ends as soon as everything the backward pass reads is there again: torch's
# checkpoint without re-entrance (`early_stop`, PyTorch 2.1), and XLA, which drops what nothing reads.
EARLY_STOPPING = ("fsdp", "jax", "pax")
# Stacks with one kernel for scale, mask and softmax of unfused attention, for 16-bit numbers: Megatron's.
FUSED_SOFTMAX = (
    "generic",
    "megatron",
    "megatron-lm",
    "megatron-deepspeed",
    "deepspeed-pipeline",
    "nemo",
    "amp",
    "amp-pipe",
)
# Stacks whose context parallelism exchanges heads for tokens (DeepSpeed Ulysses); others pass keys around.
EXCHANGING_HEADS = ("deepspeed", "megatron-deepspeed")
# Stacks with Transformer Engine's ring attention: its steps alternate between two streams, so that one fills
# what another leaves idle, and one kernel adds a partial result in the width of activations.
STREAMED_RINGS = ("generic", "megatron", "megatron-lm", "nemo")
# Stacks whose ZeRO-1 hands updated weights out by one broadcast from every rank that owns a shard, one after
# another (InternEvo, `HybridZeroOptimizer._broadcast_params`); others gather them in one collective.
BROADCASTING_SHARDS = ("internevo",)
# Stacks whose stages compute nothing while they send: DeepSpeed's pipeline engine calls the blocking send on
# the stream of its kernels (`deepspeed/runtime/pipe/p2p.py`). No row of the database is about
# `deepspeed-pipeline`: its efficiencies are those of `generic`.
BLOCKING_SENDS = ("deepspeed-pipeline", "amp", "megatron-deepspeed", "sailor")
# Stacks whose products add weight gradients to those of the microbatches before (Megatron's fused
# accumulation, XLA's loops); elsewhere autograd adds them with a kernel of its own.
FUSED_ACCUMULATION = ("generic", "megatron", "megatron-lm", "nemo", "jax", "pax")
# Stacks whose backward passes reduce a gradient over tensor parallelism behind the product's weight gradient,
# blocking: autograd functions of Megatron-LM 1.1.5 and 2.x (`megatron/mpu/mappings.py`, in DachengLi1/AMP and
# bigscience-workshop/Megatron-DeepSpeed). Megatron-LM runs both at once since 2022.
REDUCING_LATE = ("amp", "megatron-deepspeed")
# Stacks that run local experts as one grouped product; the others launch each expert's kernels.
GROUPED_EXPERTS = ("generic", "megatron", "megatron-lm", "nemo", "jax", "pax")
# Stacks with exchanges that send a token to a scale-up domain once (DeepEP in Megatron-Core). NeMo's recipes
# leave them off: DeepSeek-V3 over 128 H100 nodes takes what plain exchanges take (-2 %; sent once, -20 %).
SENDING_ONCE = ("generic", "megatron")
