"""How much a look for other plans may ask and play, once a search has a plan."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SecondLook:
    """A look for other plans once a search has one: what it asks and plays."""

    share: int  # one question for every so many of the search
    least: int  # and at least so many
    sizes: int  # of microbatches
    played: int

    def questions(self, asked: int) -> int:
        """How many questions may be asked after a search of `asked` ones."""
        return max(self.least, asked // self.share)
