"""Serving engines as data: one `EngineDefaults` per engine, version and class of card; no behaviour."""

from dataclasses import dataclass

# Which prompts share an iteration with decoding requests.
PREFILL = ("mixed", "separate")
# When a waiting request is let in: its whole prompt fits (vLLM v1, `scheduler_reserve_full_isl`);
# prompt and a decaying share of the remaining outputs (SGLang); prompt and longest output
# (TensorRT-LLM, GUARANTEED_NO_EVICT).
ADMISSION = ("whole_prompt", "reserve_ratio", "reserve_longest")
# What happens when no block is free: the last running request is recomputed from its start
# (vLLM v1), requests are retracted and the ratio rises (SGLang), it cannot happen (TensorRT-LLM).
EXHAUSTION = ("recompute", "retract", "never")


@dataclass(frozen=True, slots=True)
class EngineDefaults:
    """What an engine does unless told otherwise. Use `dataclasses.replace` for what a user sets."""

    engine: str  # vllm, sglang, trtllm
    version: str  # from this version on
    max_batched_tokens: int  # token budget of one iteration; of a prefill chunk where prefill is separate
    max_sequences: int  # seats
    block_tokens: int  # tokens of one KV block
    memory_fraction: float  # of the card, or of what is free after the weights, given to the engine
    memory_fraction_of: str  # "card" or "free"
    prefill: str  # one of PREFILL
    admission: str  # one of ADMISSION
    exhaustion: str  # one of EXHAUSTION
    async_scheduling: bool  # the host prepares the next iteration while this one runs
    prefix_cache: bool
    graph_batch: int  # largest batch captured in a CUDA graph; larger ones launch kernel by kernel
    source: str = ""

    def graph_bucket(self, batch: int) -> int:
        """The captured batch that `batch` decoding requests run in; `batch` itself beyond the largest.

        Engines capture 1, 2, 4, then multiples of 8 (of 16 from 256 on).
        """
        if batch > self.graph_batch or batch < 1:
            return batch
        for small in (1, 2, 4):
            if batch <= small:
                return small
        step = 8 if batch <= 256 else 16
        return min(-(-batch // step) * step, self.graph_batch)
