"""The rules by which an engine fills its iterations, as numbers, and the constants of its policies."""

from dataclasses import dataclass

from tangram_sim.errors import BadInputError
from tangram_sim.serving.engines import ADMISSION, EXHAUSTION, PREFILL, EngineDefaults
from tangram_sim.serving.stepcost import KvCapacity

# Two times this near are one: both players add the same seconds in different orders.
SAME_S = 1e-9

# SGLang (python/sglang/srt/environ.py, read 2026-11: SGLANG_INIT_NEW_TOKEN_RATIO 0.7,
# SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR 0.14, SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS 600, SGLANG_RETRACT_DECODE_STEPS
# 20, SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION 4096): the share of the outputs to come that is reserved for
# running requests falls with every decode step. A retraction sets it to (tokens decoded + 20 a request) /
# (longest outputs together + 1), at most 1.
FIRST_RATIO = 0.7
LEAST_RATIO = 0.7 * 0.14
RATIO_STEPS = 600
RETRACT_STEPS = 20  # decode steps for which a retraction makes room
LONGEST_RESERVED = 4096  # output tokens that are reserved for a new request at most
RATIO_FALL = (FIRST_RATIO - LEAST_RATIO) / RATIO_STEPS

# SGLang (python/sglang/srt/managers/scheduler_recv_skipper.py and environ.py, read 2026-11:
# SGLANG_SCHEDULER_RECV_SKIPPER_WEIGHT_DECODE 1, _NONE 1, _DEFAULT 1000): what an iteration counts towards
# the next look at new requests, one with prompts or one of decodes alone.
PROMPT_COUNTS = 1000
DECODE_COUNTS = 1


@dataclass(frozen=True, slots=True)
class BatchingRules:
    """Rules by which a replica fills its iterations: limits on tokens and requests, KV blocks, and policies.

    `seats` is the largest number of requests running at once. Raises BadInputError for limits below 1 and for
    unknown or conflicting policies.
    """

    budget_tokens: int
    seats: int
    block_tokens: int
    blocks: int
    mixed: bool  # prompts share iterations with decoding requests
    admission: str  # of engines.ADMISSION
    exhaustion: str  # of engines.EXHAUSTION
    prefix_cache: bool
    recv_interval: int = 1  # iterations of decodes from one look at new requests to the next

    def __post_init__(self) -> None:
        for name in ("budget_tokens", "seats", "block_tokens", "blocks", "recv_interval"):
            if getattr(self, name) < 1:
                raise BadInputError(f"{name}: {getattr(self, name)} given; 1 at least is wanted")
        if self.admission not in ADMISSION or self.exhaustion not in EXHAUSTION:
            raise BadInputError(
                f"admission {self.admission!r}, exhaustion {self.exhaustion!r}: known are "
                f"{', '.join(ADMISSION)} and {', '.join(EXHAUSTION)}"
            )
        if self.exhaustion == "never" and self.admission != "reserve_longest":
            raise BadInputError("exhaustion 'never' needs admission 'reserve_longest': blocks would run out")

    @property
    def reserves(self) -> bool:
        """Whether a request is allocated the blocks of its longest context at admission."""
        return self.admission == "reserve_longest"

    def holds(self, tokens: int) -> int:
        """KV blocks that hold `tokens` tokens, rounded up."""
        return -(-tokens // self.block_tokens)


def batching_rules(engine: EngineDefaults, capacity: KvCapacity) -> BatchingRules:
    """The batching rules of an engine on a replica with this KV capacity.

    A decoding request takes one token of an iteration's token budget, so the budget also limits the seats.
    """
    return BatchingRules(
        budget_tokens=engine.max_batched_tokens,
        seats=min(engine.max_sequences, engine.max_batched_tokens),
        block_tokens=capacity.block_tokens,
        blocks=capacity.blocks,
        mixed=engine.prefill == PREFILL[0],
        admission=engine.admission,
        exhaustion=engine.exhaustion,
        prefix_cache=engine.prefix_cache,
        recv_interval=engine.recv_interval,
    )
