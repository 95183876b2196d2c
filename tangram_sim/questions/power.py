"""Options on the power of training: caps of GPUs, limit of the site, PUE, carbon, electricity."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tangram_sim.fields import option
from tangram_sim.units import read_watts
from tangram_sim.written import name_list

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.studies.training_power import PowerTerms
    from tangram_sim.studies.training_run import WantedRun

_ENERGY: dict[str, Any] = {"group": "Energy"}


def _kilowatts(text: str) -> float:
    """Kilowatts, read from a number or from text such as `1.2MW`. Raises BadInputError."""
    digits = text.strip()
    return read_watts(digits if digits[-1:] in "wW" else f"{digits} kW") / 1000


def pue_option(help: str, default: float | None = 1.0, **words: Any) -> Any:  # noqa: A002
    """The option for power usage effectiveness: the site's power over that of its machines."""
    given = {"label": "Power usage effectiveness", "unit": "a factor", "least": 1, "most": 10, **_ENERGY}
    return option(default, help, **given, **words)


def carbon_option(help: str) -> Any:  # noqa: A002
    """The option for grams of CO2 equivalent per kWh; 0: not stated."""
    return option(0.0, help, label="Carbon intensity", unit="g/kWh", least=0, most=10_000, **_ENERGY)


@dataclass(frozen=True, slots=True)
class PowerOptions:
    """Limits on power, and factors that convert power to carbon and money."""

    power_cap: tuple[str, ...] = option(
        (),
        "Most watts of each GPU, like 400W, or of a kind, like H100=400W; several with commas.",
        label="Power cap of each GPU",
        reads=name_list,
        **_ENERGY,
    )
    site_power: float | None = option(
        None,
        "Most kW that GPUs and hosts draw in the mean of a step, times PUE; lowers clocks.",
        label="Power of the site",
        unit="kW",
        above=0,
        reads=_kilowatts,
        **_ENERGY,
    )
    pue: float | None = pue_option(
        "Power usage effectiveness of the site.", None, unset="that of a price file, else 1"
    )
    carbon: float = carbon_option("Carbon intensity of the power, grams of CO2 equivalent a kWh.")
    usd_per_kwh: float | None = option(
        None,
        "Price of electricity, where the rent does not include it.",
        label="Price of electricity",
        unit="USD/kWh",
        least=0,
        most=100,
        unset="that of a price file, else 0",
        **_ENERGY,
    )

    def terms(
        self, hwdb: "Hwdb", objective: str = "time", run: "WantedRun | None" = None
    ) -> "PowerTerms | None":
        """The terms on power, for a `run` or for one without an end; None if nothing is asked.

        Raises BadInputError or UnknownNameError.
        """
        from tangram_sim.studies.training_power import PowerTerms, caps_of, weights_of

        terms = PowerTerms(
            caps_w=caps_of(self.power_cap, hwdb),
            site_w=math.inf if self.site_power is None else self.site_power * 1000,
            pue=1.0 if self.pue is None else self.pue,
            carbon=self.carbon,
            usd_per_kwh=self.usd_per_kwh or 0.0,
            weights=weights_of(objective),
        )
        return None if terms == PowerTerms() else replace(terms, tokens=run.tokens if run else math.inf)
