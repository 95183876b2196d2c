"""Rounding of figures by their interval, so that no digit is shown that is not known."""

import math

from tangram_sim.units import show_amount, show_seconds


def rounded(value: float, low: float = math.nan, high: float = math.nan) -> float:
    """`value` rounded to the place of a tenth of half its interval; without one to three digits."""
    half = (high - low) / 2
    if value == 0 or not math.isfinite(value):
        return value
    if not half > 0:
        return _to(value, math.floor(math.log10(abs(value))) - 2)
    # Never so coarse that the figure itself goes: two digits always stay.
    place = min(math.floor(math.log10(half / 10)), math.floor(math.log10(abs(value))) - 1)
    return _to(value, place)


def _to(value: float, place: int) -> float:
    """`value` rounded to a multiple of 10**place."""
    return round(value / 10.0**place) * 10.0**place if place > 0 else round(value, -place)


def with_interval(value: float, low: float, high: float) -> str:
    """`350,000 (250,000 to 500,000)`: all three to the digits of the interval."""
    if not high > low:
        return number(rounded(value))
    ends = (rounded(item, low, high) for item in (low, high))
    return f"{number(rounded(value, low, high))} ({' to '.join(number(end) for end in ends)})"


def seconds_with_interval(value: float, low: float, high: float) -> str:
    """A time with its interval, `5.96 s (4.2 s to 8.5 s)`; without one, the time."""
    if not high > low:
        return show_seconds(value)
    value, low, high = (rounded(item, low, high) for item in (value, low, high))
    return f"{show_seconds(value)} ({show_seconds(low)} to {show_seconds(high)})"


def time_with_interval(days: float, low: float = 0.0, high: float = 0.0) -> str:
    """Days with their interval in the unit that fits, `3.2 days (2.1 to 5)`, from hours to years."""
    unit, size = ("hours", 1 / 24) if days < 2 else ("years", 365.25) if days > 3652.5 else ("days", 1.0)
    value, low, high = days / size, low / size, high / size
    if not high > low:
        return f"{number(rounded(value))} {unit}"
    ends = " to ".join(number(rounded(item, low, high)) for item in (low, high))
    return f"{number(rounded(value, low, high))} {unit} ({ends})"


def number(value: float) -> str:
    """A number as text with commas between thousands and without trailing zeros."""
    if abs(value) >= 100 or value == round(value):
        return f"{value:,.0f}"
    places = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.{places}f}".rstrip("0").rstrip(".")


def dollars(usd: float) -> str:
    """Dollars to three digits, `$1.23 million`, `$531,000`, `$0.012`."""
    if usd >= 1e6:
        return f"${show_amount(rounded(usd))}"
    return f"${number(rounded(usd))}"
