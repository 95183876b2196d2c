"""The training job: the work of one step, and bytes per number."""

from dataclasses import dataclass, fields, replace

from tangram_sim.errors import BadInputError, shown, unknown_name
from tangram_sim.fields import SOFTWARE, described, option
from tangram_sim.models import Model
from tangram_sim.precision import Precision, converted, plain
from tangram_sim.training.stacks import Code, code_of
from tangram_sim.written import number_format, whole

MOST_SEQUENCES, MOST_TOKENS = 1 << 20, 1 << 24  # of a step, of a sequence: far above any run there is


def require_whole(field: str, value: object, most: int | None = None) -> None:
    """Raise BadInputError unless a field of a job is an integer from 1 to `most` (None: no limit)."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most and value > most):
        limits = f"1 to {most}" if most else "1 or more"
        raise BadInputError(f"`{field}={shown(value)}`: give a whole number, {limits}")


_SCHEDULES = ("1f1b", "gpipe", "zb-h1", "interleaved", "zb-v", "dualpipe-v", "auto")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A precision, with the bytes of gradients and of a master copy of the weights.

    `bf16` keeps fp32 gradients (Megatron-LM forces fp32 accumulation for bf16), `fp16` keeps 2-byte gradients
    under loss scaling; both keep an fp32 master copy. fp8, mxfp8 and nvfp4 compute their GEMMs in that type
    and everything else in bf16.
    """

    precision: Precision
    gradient_bytes: float  # per parameter
    master_bytes: float


RECIPES = {
    "bf16": Recipe(plain("bf16"), gradient_bytes=4, master_bytes=4),
    "fp16": Recipe(plain("fp16"), gradient_bytes=2, master_bytes=4),
    "fp32": Recipe(plain("fp32"), gradient_bytes=4, master_bytes=0),
    "tf32": Recipe(plain("tf32"), gradient_bytes=4, master_bytes=0),
    "fp8": Recipe(converted("fp8", "fp8"), gradient_bytes=4, master_bytes=4),
    "mxfp8": Recipe(converted("mxfp8", "fp8"), gradient_bytes=4, master_bytes=4),
    "nvfp4": Recipe(converted("nvfp4", "fp4"), gradient_bytes=4, master_bytes=4),
}

# Bytes of optimizer state per parameter, master copy apart: fp32 moments.
OPTIMIZER_STATE_BYTES = {
    "adamw": 8.0,
    "adam": 8.0,
    "adamw-8bit": 2.004,  # two 8-bit moments, an fp32 scale per 2,048 of each (Dettmers, arXiv:2110.02861)
    "lamb": 8.0,
    "sgd": 0.0,
    "momentum": 4.0,
    "lion": 4.0,  # one moment (Chen et al., arXiv:2302.06675)
    "muon": 4.0,  # one moment of matrices; ends of the model have AdamW's (Jordan et al., 2024)
    "adafactor": 0.1,  # row and column sums only (Shazeer & Stern, arXiv:1804.04235)
}


# A 4-bit weight with its share of scales quantised twice (Dettmers et al., arXiv:2305.14314, section 3).
NF4_BYTES = (4.0 + 0.127) / 8.0
PACKED_SPREAD = 1.63  # tokens seen over the mean document: exp(0.7 squared), lognormal lengths (assumed)


def _schedule(text: str) -> str:
    """A schedule's name; built-in names in lower case."""
    return text.lower() if text.lower() in _SCHEDULES else text


@described
@dataclass(frozen=True, slots=True)
class Job:
    """One optimizer step: `global_batch` sequences of `seq` tokens."""

    global_batch: int = option(
        128,
        "Sequences per optimizer step; 4k is 4,096.",
        label="Sequences a step",
        unit="sequences",
        least=1,
        most=MOST_SEQUENCES,
        reads=whole,
        basic=True,
    )
    seq: int = option(
        2048,
        "Tokens per sequence; 8k is 8,192.",
        label="Tokens a sequence",
        unit="tokens",
        least=1,
        most=MOST_TOKENS,
        reads=whole,
        basic=True,
    )
    dtype: str = option(
        "auto",
        "auto, bf16, fp16, fp32, tf32, fp8, mxfp8 or nvfp4.",
        label="Number format",
        choices=("auto", *RECIPES),
        reads=number_format,
        basic=True,
    )
    optimizer: str = option(
        "adamw",
        "adamw, adam, adamw-8bit, lamb, sgd, momentum, lion, muon or adafactor.",
        label="Optimizer",
        choices=tuple(OPTIMIZER_STATE_BYTES),
    )
    schedule: str = option(
        "1f1b",
        "1f1b, gpipe, zb-h1, interleaved, zb-v, dualpipe-v, or an added one.",
        label="Schedule",
        reads=_schedule,
    )
    trainable: float = option(
        1.0,
        "Share of the parameters that is trained; adapters: below 0.01.",
        unit="a share",
        above=0,
        most=1,
        example="0.001 for adapters",
    )
    frozen: str = option(
        "",
        "Format in which weights that are not trained are held: nf4 is QLoRA's; the number format's own if "
        "left out.",
        choices=("", "nf4"),
    )
    packed: float = option(
        0.0,
        "Mean tokens of documents packed into a sequence, each attending to itself alone; 0: one fills it.",
        unit="tokens",
        least=0,
    )
    gradient_bytes: float = option(
        0.0, "Bytes of a gradient where the software departs from the recipe; 0: the recipe's."
    )
    stack: str = option(
        "generic",
        "Software stack whose efficiency rows apply: generic, megatron, nemo, fsdp, ...",
        label="Software",
        group=SOFTWARE,
    )
    flash_attention: bool = option(
        True,
        "Whether the software calls a fused attention kernel.",
        spelled="--flash-attention/--no-flash-attention",
        group=SOFTWARE,
    )
    plain_operations: bool = option(
        False,
        "Norms, activations and the loss are plain tensor operations, as in Hugging Face's models.",
        group=SOFTWARE,
    )
    fused_loss: bool = option(
        True,
        "The loss is computed in place of the logits, where the stack can.",
        group=SOFTWARE,
    )
    dropout: bool = option(
        True,
        "Whether blocks of GPT's and BERT's kind use dropout.",
        spelled="--dropout/--no-dropout",
        group=SOFTWARE,
    )
    shard_ranks: int = option(
        0, "Replicas that what ZeRO cuts is cut over (hybrid sharding); 0: all of them.", group=SOFTWARE
    )
    launch_blocking: bool = option(
        False, "The device waits while the host launches (CUDA_LAUNCH_BLOCKING, timers).", group=SOFTWARE
    )
    gradients_last: bool = option(
        False,
        "Gradients are reduced behind the last pass, even where the stack overlaps them.",
        group=SOFTWARE,
    )
    cuda_graphs: bool = option(
        False, "Blocks are captured: the host launches one at once, in each direction.", group=SOFTWARE
    )

    def __post_init__(self) -> None:
        """Raise BadInputError or UnknownNameError for impossible values."""
        # No upper limit for the batch here: bounds over fleets ask about steps without end. A user's is held
        # to MOST_SEQUENCES where it comes in.
        require_whole("global_batch", self.global_batch)
        require_whole("seq", self.seq, MOST_TOKENS)
        if not 0 < self.trainable <= 1:
            raise BadInputError(
                f"`trainable={self.trainable:g}`: give a share above 0, at most 1, e.g. 0.001 for adapters"
            )
        if self.frozen not in ("", "nf4") or self.packed < 0:
            raise BadInputError(
                f"`frozen={self.frozen}`, `packed={self.packed:g}`: give nf4; a mean of tokens"
            )
        if self.optimizer not in OPTIMIZER_STATE_BYTES:
            raise unknown_name("optimizer", self.optimizer, OPTIMIZER_STATE_BYTES)
        if self.dtype not in ("auto", *RECIPES):
            raise unknown_name("dtype", self.dtype, ["auto", *RECIPES])

    def __repr__(self) -> str:
        """The batch, and all values that differ from the defaults."""
        said = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if field.name in ("global_batch", "seq") or getattr(self, field.name) != field.default
        ]
        return f"Job({', '.join(said)})"

    @property
    def precision(self) -> Precision:
        """The number formats; `auto` must have been resolved before."""
        return RECIPES[self.dtype].precision

    @property
    def recipe(self) -> Recipe:
        """The precision with bytes of gradients and master copy; `auto` must have been resolved before."""
        recipe = RECIPES[self.dtype]
        return replace(recipe, gradient_bytes=self.gradient_bytes) if self.gradient_bytes else recipe

    @property
    def code(self) -> Code:
        """Properties of the stack's code that do not depend on kernel or link speeds."""
        return code_of(self.stack)

    @property
    def reduces_apart(self) -> bool:
        """Whether data-parallel gradient reduction overlaps with no computation."""
        return self.gradients_last or self.code.reduces_apart

    @property
    def fused_softmax(self) -> bool:
        """Whether attention without a flash kernel scales, masks and normalises scores in one kernel."""
        return self.code.fused_softmax and self.precision.activation_bytes < 4

    @property
    def optimizer_bytes(self) -> float:
        """Optimizer state and master copy, bytes per parameter."""
        return self.recipe.master_bytes + OPTIMIZER_STATE_BYTES[self.optimizer]

    @property
    def bytes_per_parameter(self) -> float:
        """Lower bound on weights, gradients and optimizer state, bytes per parameter of one copy."""
        precision = self.precision
        trained = precision.weight_bytes + self.recipe.gradient_bytes + self.optimizer_bytes
        return self.trainable * trained + (1.0 - self.trainable) * self.frozen_bytes

    @property
    def frozen_bytes(self) -> float:
        """Bytes of a frozen weight of a block: at most those of the products' operand type; 4 bits in NF4."""
        if self.frozen:
            return NF4_BYTES
        return min(self.precision.weight_bytes, self.precision.operand_bytes)

    @property
    def attended(self) -> int:
        """Tokens that attention treats as one sequence: all, or with packed documents a typical one's."""
        return min(self.seq, max(round(self.packed * PACKED_SPREAD), 1)) if self.packed else self.seq

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.global_batch * self.seq

    def tied_bytes(self, model: Model) -> float:
        """Bytes of one copy of a tied matrix's gradient; 0 where embedding and head are not tied."""
        kept = self.recipe.gradient_bytes
        width = self.precision.activation_bytes if self.code.ties_as_computed else kept
        return model.tied * model.vocabulary_parameters * width * self.trainable

    def boundary_bytes(self, model: Model, sequences: float) -> float:
        """Bytes of the activations of `sequences` between two stages, each element sent once."""
        return sequences * self.seq * model.hidden * self.precision.activation_bytes
