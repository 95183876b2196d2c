"""Values as people write them: 8k, 90s, 10 %. Each reading raises ValueError that says what to give."""

import re
from fractions import Fraction

_DECIMAL = re.compile(r"-?[0-9]+([.][0-9]+)?")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_WORDS = ("inf", "infinity", "nan")
_LONG_NAMES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}


def whole(text: str) -> int:
    """A whole number: 8192, 8,192, 8k, which is 8,192, so 1.5k is 1,536, or 1M, which is 1,048,576."""
    digits = text.replace(",", "").replace("_", "").strip()
    size = {"k": 1024, "m": 1024**2}.get(digits[-1:].lower())
    try:
        if size is None:
            return int(digits)
        counted = digits[:-1].strip()
        number = Fraction(counted) * size if _DECIMAL.fullmatch(counted) else Fraction(1, 2)
        if number.denominator == 1:
            return int(number)
    except ValueError:
        pass
    raise ValueError("no integer; give e.g. 8192 or 8k")


def positive(text: str) -> int:
    """A whole number, 1 or more."""
    found = whole(text)
    if found < 1:
        raise ValueError("give 1 or more, or leave the option out")
    return found


def seconds(text: str) -> float:
    """Seconds: 90, 90s, 1.5m or 1h."""
    plain = text.strip().lower()
    number = plain.rstrip("abcdefghijklmnopqrstuvwxyz ") if plain not in _WORDS else plain
    factor = _SECONDS.get(plain[len(number) :].strip())
    try:
        if factor is not None:
            return float(number) * factor
    except ValueError:
        pass
    raise ValueError("give seconds, e.g. 90, or 90s, 2m, 1h")


def number_format(text: str) -> str:
    """A number format in any case, and by the names that PyTorch has."""
    return _LONG_NAMES.get(text.lower(), text.lower())


def name_list(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise ValueError("give names separated by commas, or leave the option out")
    return found


def whole_numbers(text: str) -> tuple[int, ...]:
    """Whole numbers separated by commas."""
    parts = name_list(text)
    if not all(part.isascii() and part.isdigit() and len(part) < 9 for part in parts):
        raise ValueError("give whole numbers separated by commas, e.g. 10,10,6,6")
    return tuple(int(part) for part in parts)


def share(text: str) -> float:
    """A share, 0.05 or 5 %."""
    plain = text.strip()
    try:
        return float(plain.removesuffix("%")) / (100 if plain.endswith("%") else 1)
    except ValueError:
        raise ValueError("give a share, e.g. 0.05 or 5%") from None


def margin(text: str) -> float | None:
    """A share of memory, 0.1 or 10 %; None for `auto`."""
    if text.strip() == "auto":
        return None
    try:
        return share(text)
    except ValueError:
        raise ValueError("give auto or a share of the memory, e.g. 0.1 or 10%") from None
