"""Rerouting the microbatches of dead workers to their peers (ReCycle, Gandhi et al., SOSP 2024): slots.

Stage s has D workers, one in each pipeline, k_s of them dead; each live one does m D / (D - k_s) microbatches
instead of m.
"""

from collections.abc import Sequence


def busiest(pipelines: int, microbatches: int, dead: Sequence[int]) -> list[int]:
    """Microbatches that the busiest live worker of every stage does; empty where a stage has none left."""
    if any(count >= pipelines for count in dead):
        return []
    return [-(-microbatches * pipelines // (pipelines - count)) for count in dead]


def rerouted_slots(pipelines: int, stages: int, microbatches: int, dead: Sequence[int]) -> int:
    """Slots of forward and backward of a step without use of bubbles; 0: a stage has no worker left."""
    counts = busiest(pipelines, microbatches, [*dead, *[0] * (stages - len(dead))])
    return max(counts) + stages - 1 if counts else 0
