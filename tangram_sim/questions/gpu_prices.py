"""Prices of single GPUs as a question gives them: GPU=USD an hour, by kind."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from tangram_sim.errors import BadInputError
from tangram_sim.fields import option

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb


def price_option() -> Any:
    """The option for USD per GPU-hour by kind."""
    return option(
        (),
        "USD an hour of one GPU, as GPU=USD; may be given several times.",
        label="USD an hour of a GPU",
        group="Prices",
    )


def usd_by_gpu(given: Sequence[str], kinds: Collection[str], hwdb: "Hwdb") -> dict[str, float]:
    """USD per GPU-hour by kind, from `GPU=USD` items. `kinds`: GPUs that the question is about.

    Raises BadInputError for other forms and for GPUs that are not in the question, UnknownNameError.
    """
    found = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            usd = float(value)
        except ValueError:
            usd = -1.0
        if not 0 < usd < float("inf"):
            raise BadInputError(f"`price={text}`: give GPU=USD an hour, above zero, e.g. H20-96GB=1.5")
        kind = hwdb.gpu(name.strip()).name
        if kind not in kinds:
            raise BadInputError(
                f"`price={text}`: no {kind} in this question, which has {', '.join(sorted(kinds))}"
            )
        found[kind] = usd
    return found
