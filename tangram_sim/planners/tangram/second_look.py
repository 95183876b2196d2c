"""Limits on a further search once a search has found a plan."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SecondLook:
    """Limits on a further search once a search has found a plan: requests and simulations."""

    share: int  # one question for every so many of the search
    least: int  # and at least so many
    sizes: int  # of microbatches
    played: int

    def questions(self, asked: int) -> int:
        """Number of requests allowed after a search that made `asked` ones."""
        return max(self.least, asked // self.share)
