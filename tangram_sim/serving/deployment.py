"""Types that describe a serving replica: stages on GPUs, parallel degrees, precision, engine. No I/O."""

from dataclasses import dataclass
from functools import cached_property

from tangram_sim.clusters import Island
from tangram_sim.models import Model
from tangram_sim.precision import Precision
from tangram_sim.serving.engines import EngineDefaults

CHANNEL_SCALED = ("llama4", "mixtral")  # families whose experts in fp8 have a scale a channel or matrix


@dataclass(frozen=True, slots=True)
class ReplicaStage:
    """Blocks [first, end) of the model on the GPUs of one island, with tensor parallelism of degree `tp`.

    The stage with block 0 also holds the embedding, the one with the last block the head.
    """

    island: Island  # as many GPUs as the stage has ranks: tp (x attention data parallelism)
    first: int
    end: int
    tp: int = 1

    @property
    def gpus(self) -> int:
        """Ranks of the stage."""
        return self.island.gpus


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculative decoding: `drafts` tokens are checked in one iteration.

    A draft token is accepted with probability `acceptance` if all before it were.
    """

    drafts: int
    acceptance: float

    @property
    def tokens(self) -> float:
        """Tokens that one iteration yields on average (Leviathan et al., arXiv:2211.17192, equation 1)."""
        if self.acceptance >= 1.0:
            return self.drafts + 1.0
        return (1.0 - self.acceptance ** (self.drafts + 1)) / (1.0 - self.acceptance)


@dataclass(frozen=True)
class Deployment:
    """One replica: a model served by an engine on one or several stages, of equal or unequal GPUs.

    `attention_dp` splits requests over groups of tp ranks that share experts; `ep` spreads routed experts
    over that many ranks (the others split each expert by tensor parallelism).
    """

    model: Model
    stages: tuple[ReplicaStage, ...]
    precision: Precision
    engine: EngineDefaults
    ep: int = 1
    attention_dp: int = 1
    speculation: Speculation | None = None

    @property
    def block_scaled(self) -> bool:
        """Whether experts are in fp8 with one scale per block of weights.

        True for DeepSeek, Qwen3, MiniMax and GLM; those in `CHANNEL_SCALED` have one per channel or matrix.
        """
        fp8 = (self.precision.experts or self.precision.weights) == "fp8"
        return fp8 and self.model.family not in CHANNEL_SCALED

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        return len(self.stages)

    @cached_property
    def gpus(self) -> int:
        """GPUs of the replica."""
        return sum(stage.gpus for stage in self.stages)
