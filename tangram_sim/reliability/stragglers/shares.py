"""Shares of work by speed: how many microbatches each replica runs."""

from collections.abc import Sequence

from tangram_sim.errors import BadInputError
from tangram_sim.training.shares import by_earliest_end


def split_microbatches(seconds: Sequence[float], microbatches: int, least: int = 0) -> tuple[int, ...]:
    """How many microbatches each replica runs so that the last to end ends soonest.

    `seconds` is what a microbatch takes on each replica; every replica runs at least `least`. Raises
    `BadInputError` for times not above 0 or too few microbatches.
    """
    if not seconds or min(seconds) <= 0 or microbatches < least * len(seconds):
        raise BadInputError(
            f"{microbatches} microbatches cannot be shared over replicas that take {list(seconds)} s "
            f"each, at least "
            f"{least} each; give seconds above 0 and enough microbatches."
        )
    return by_earliest_end(
        microbatches, lambda replica, count: count * seconds[replica], [1] * len(seconds), least
    )
