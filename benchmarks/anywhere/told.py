"""What a law of generated worlds tells."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Told:
    """One comparison: of which law, what was changed, the two figures, whether they stand as they must."""

    law: str
    what: str
    base: float
    other: float
    holds: bool
