"""Units: SI floats everywhere inside; here are the factors and the way numbers are shown to people."""

import math
from collections.abc import Callable

from tangram_sim.errors import BadInputError, shown

KIB, MIB, GIB = 1024.0, 1024.0**2, 1024.0**3
KILO, MEGA, GIGA, TERA = 1e3, 1e6, 1e9, 1e12
BITS_PER_BYTE = 8.0
HOUR_S, DAY_S = 3600.0, 86400.0
JOULES_PER_KWH = 3.6e6
_DAYS_IN = {"h": 1 / 24, "d": 1.0, "w": 7.0, "mo": 30.4375, "y": 365.25}
_TIME_WORDS = ("hour", "day", "week", "month", "year")
_SIZES = {"k": KILO, "m": MEGA, "b": GIGA, "t": TERA}


def gbps_to_bytes_per_s(gbps: float) -> float:
    """Convert vendors' gigabits per second, one direction, to bytes per second."""
    return gbps * GIGA / BITS_PER_BYTE


def show_seconds(seconds: float) -> str:
    """A duration with three significant digits: `1.23 s`, `45.6 ms`, `7.89 us`."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(seconds) >= scale:
            return (
                f"{seconds / scale:.3g} {unit}" if seconds < 1000 * scale else f"{seconds / scale:.0f} {unit}"
            )
    return "0 s" if seconds == 0 else f"{seconds / 1e-9:.3g} ns"


def show_span(seconds: float) -> str:
    """A long time in the unit a person thinks in, `88 days`, `3.06 hours`; below two hours as a duration."""
    for scale, unit in ((DAY_S, "days"), (HOUR_S, "hours")):
        if seconds >= 2 * scale:
            return f"{float(f'{seconds / scale:.3g}'):,g} {unit}"
    return show_seconds(seconds)


def percent(share: float, digits: int = 0, *, signed: bool = False) -> str:
    """A share of one as `44.5 %`, with a blank as SI units have it; `+3 %` where it is `signed`."""
    return f"{100.0 * share:{'+' if signed else ''}.{digits}f} %"


def show_amount(count: float) -> str:
    """A large count in words, `1 trillion`, `2.5 billion`; smaller ones in digits."""
    for size, word in ((TERA, "trillion"), (GIGA, "billion"), (MEGA, "million")):
        if count >= size:
            return f"{count / size:,.4g} {word}"
    return f"{count:,.0f}"


def read_watts(text: str) -> float:
    """The watts in `400W`, `400`, `1.2kW` or `0.5 MW`; not `mW`. Raises BadInputError."""
    digits = text.strip().removesuffix("W").removesuffix("w").strip()
    size = {"k": KILO, "K": KILO, "M": MEGA}.get(digits[-1:], 1.0)
    try:
        watts = float(digits[:-1] if size > 1.0 else digits) * size
    except ValueError:
        watts = 0.0
    if not 0.0 < watts < 1e12:
        raise BadInputError(f"{shown(text)} is no power; give watts above 0, like 400W or 1.2kW")
    return watts


def amount_of(text: str) -> float:
    """The count in `200B`, `1.5T`, `300M`, `20k` or `1e12`: B is billions. Raises BadInputError."""
    digits = text.strip()
    size = _SIZES.get(digits[-1:].lower(), 1.0)
    try:
        return float(digits[:-1] if size > 1.0 else digits) * size
    except ValueError:
        raise BadInputError(
            f"{shown(text)} is no amount; give a number, with k, M, B or T for thousands to trillions, "
            "e.g. 200B or 2e11"
        ) from None


def show_bytes(count: float) -> str:
    """A size in binary units, as drivers report memory: `14.3 GiB`."""
    for scale, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(count) >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} B"


def show_rate(bytes_per_s: float) -> str:
    """A bandwidth in one direction, decimal: `12.5 GB/s`."""
    return f"{bytes_per_s / GIGA:.4g} GB/s"


def days_of(given: str | float, option: str = "`finish_within=`") -> float:
    """Days in `14d`, `36h`, `2w`, `3 months` or days, not in the unclear `3m`. Raises BadInputError."""
    text = str(given).strip().lower()
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(number) :].strip()
    factor = _DAYS_IN.get("mo" if unit.startswith("mo") else unit[:1] or "d")
    known = not unit or unit in _DAYS_IN or unit.removesuffix("s") in (*_TIME_WORDS, "hr", "mo", "yr")
    try:
        days = float(number) * factor if factor is not None and known else math.nan
    except ValueError:
        days = math.nan
    if not (math.isfinite(days) and days > 0):
        raise BadInputError(f"{option} {shown(text)}: give a time like 14d, 36h, 2w or 3 months")
    return days


def usd_of(given: str | float) -> float:
    """Dollars in `250k`, `$1.5M` or a plain number. Raises BadInputError."""
    try:
        usd = amount_of(str(given).strip().removeprefix("$").replace(",", ""))
    except BadInputError:
        usd = math.nan
    if not (math.isfinite(usd) and usd > 0):
        raise BadInputError(
            f"`budget=` {str(given)[:40]}: give US dollars above zero, e.g. 40000, 250k or $1.5M; other "
            "currencies are not converted"
        )
    return usd


def inverse(forward: Callable[[float], float], wanted: float, guess: float) -> float:
    """The shortest number x with forward(x) == wanted, so that a plan file reads back bit for bit.

    `guess` is a number near x; it is returned where no number close to it gives exactly `wanted`.
    """
    for digits in range(1, 18):
        candidate = float(f"{guess:.{digits}g}")
        if forward(candidate) == wanted:
            return candidate
    below = above = guess
    for _ in range(4):
        below, above = math.nextafter(below, -math.inf), math.nextafter(above, math.inf)
        for candidate in (below, above):
            if forward(candidate) == wanted:
                return candidate
    return guess
