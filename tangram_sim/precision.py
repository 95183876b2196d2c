"""Number formats of a model in use: types of weights, activations, matrix products and KV cache. No I/O."""

from dataclasses import dataclass, replace

# Bytes per stored number, scales included: mxfp8 has a byte of scale for 32 numbers (OCP MX specification
# 1.0), nvfp4 one for 16 (NVIDIA cuBLAS documentation, 1D block scaling), mxfp4 one for 32; int4 a 2-byte
# scale and half a byte of zero point for each group of 128 (AWQ, GPTQ as published with `group_size` 128).
STORED_BYTES = {
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "mxfp8": 1.0 + 1.0 / 32,
    "nvfp4": 0.5 + 1.0 / 16,
    "mxfp4": 0.5 + 1.0 / 32,
    "int4": 0.5 + 2.5 / 128,
}


@dataclass(frozen=True, slots=True)
class NumberTypes:
    """Number types of kernels: columns of gpus.csv for matrix products and all else, and a display name."""

    name: str
    gemm: str
    vector: str


@dataclass(frozen=True, slots=True)
class Precision:
    """Types of one model as it is run; names are keys of `STORED_BYTES`, `compute` a peak column of gpus.csv.

    `weights` are those of the large products of the blocks (routed experts apart, where `experts` names
    their own type), `attention` those of the attention's projections, `ends` embedding and head: these
    two often stay in 16 bits when a checkpoint is quantised. `compute` is the type that products of
    quantised weights run in, `vector` everything else, `activations` what lies between kernels. Training
    keeps weights in 16 bits and hands products `operands`, converted copies (Transformer Engine).
    """

    name: str
    weights: str
    attention: str
    ends: str
    compute: str
    attention_compute: str
    vector: str
    activations: str
    kv: str
    experts: str = ""  # "": as `weights`
    operands: str = ""  # what large products read, where it is not `weights`: copies in a narrower type

    @property
    def types(self) -> NumberTypes:
        """What rates of a device depend on."""
        return NumberTypes(self.name, self.compute, self.vector)

    @property
    def operand_bytes(self) -> float:
        """Bytes per operand of the large products."""
        return STORED_BYTES[self.operands or self.weights]

    @property
    def narrow(self) -> bool:
        """Whether matrix products run in a narrower type than activations, which are then converted."""
        return self.operand_bytes < self.activation_bytes / 1.5

    @property
    def weight_bytes(self) -> float:
        """Bytes per weight of the feed-forwards."""
        return STORED_BYTES[self.weights]

    @property
    def expert_bytes(self) -> float:
        """Bytes per weight of the routed experts."""
        return STORED_BYTES[self.experts or self.weights]

    @property
    def attention_bytes(self) -> float:
        """Bytes per weight of the attention's projections."""
        return STORED_BYTES[self.attention]

    @property
    def end_bytes(self) -> float:
        """Bytes per weight of embedding and head."""
        return STORED_BYTES[self.ends]

    @property
    def activation_bytes(self) -> float:
        """Bytes per number between kernels."""
        return STORED_BYTES[self.activations]

    @property
    def kv_bytes(self) -> float:
        """Bytes per number of the KV cache."""
        return STORED_BYTES[self.kv]


def plain(name: str) -> Precision:
    """Everything in one type."""
    return Precision(
        name=name,
        weights=name,
        attention=name,
        ends=name,
        compute=name,
        attention_compute=name,
        vector=name,
        activations=name,
        kv=name,
    )


def converted(name: str, compute: str) -> Precision:
    """16-bit weights and activations whose large products read copies stored as `name`, run in `compute`."""
    return replace(plain("bf16"), name=name, compute=compute, attention_compute=compute, operands=name)


def _quantised(name: str, compute: str, attention: str = "") -> Precision:
    inner = attention or name
    return Precision(
        name=name,
        weights=name,
        attention=inner,
        ends="bf16",
        compute=compute,
        attention_compute=compute if inner == name else "bf16",
        vector="bf16",
        activations="bf16",
        kv="bf16",
    )


# What serving engines run, by the name users give. int4 weights are unpacked to 16 bits inside the kernel.
PRECISIONS = {
    "bf16": plain("bf16"),
    "fp16": plain("fp16"),
    "fp32": plain("fp32"),
    "fp8": _quantised("fp8", "fp8"),
    "int8": _quantised("int8", "int8"),
    "nvfp4": _quantised("nvfp4", "fp4", attention="bf16"),
    "mxfp4": _quantised("mxfp4", "bf16", attention="bf16"),
    "int4": _quantised("int4", "bf16", attention="bf16"),
}
