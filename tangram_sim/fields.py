"""What a field that people set is about: help, unit, bounds, choices, group. Stated once, beside the field.

A dataclass says it where it declares a field:

    seq: int = option(2048, "Tokens per sequence.", unit="tokens", least=1)

`tangram_sim.questions` derives from it what each face needs: options, forms, schemas, files, help. A field
that Python alone sets says it by `stated`, for `help()`.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache
from typing import Any, TypeVar

from tangram_sim.errors import BadInputError, shown, unknown_name

MODEL, SEARCH, LIMITS, SOFTWARE, OUTPUT = "Model and job", "Search", "Limits", "Software", "Output"
_ABOUT, _PART, _STATED = "tangram_about", "tangram_part", "tangram_stated"
# What names of figures end with: the unit that this means, and what of it is a word of the name, too.
_UNITS = {
    "tokens_per_s": ("tokens/s", ""),
    "bytes_per_s": ("bytes/s", ""),
    "flop_per_s": ("flop/s", ""),
    "gb_per_s": ("GB/s", ""),
    "per_s": ("per second", ""),
    "tok_s": ("tokens/s", ""),
    "rps": ("requests/s", ""),
    "s": ("seconds", ""),
    "bytes": ("bytes", ""),
    "w": ("watts", ""),
    "usd_per_hour": ("USD/h", ""),
    "cost_per_hour": ("USD/h", "cost"),
    "price_per_hour": ("USD/h", "price"),
    "budget_per_hour": ("USD/h", "budget"),
    "tokens_per_usd": ("tokens/USD", ""),
    "usd": ("USD", ""),
    "share": ("a share", ""),
    "fraction": ("a share", ""),
    "mfu": ("a share", "mfu"),
    "margin": ("a share", "margin"),
    "tolerance": ("a share", "tolerance"),
}
_ALONE = {"tokens/s": "throughput", "USD": "cost", "USD/h": "cost"}  # names that are nothing but a unit
_ENDING = re.compile(
    rf"(?:^|_)(?:({'|'.join(_UNITS)})(?=(?:_low|_high|_per_gpu|_cluster)?$)|usd(?=_(?:per|to)_))"
)

Class = TypeVar("Class")


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Description of one field that users set.

    `least`, `most`: inclusive bounds; `above`, `below`: exclusive bounds. `choices`: all allowed values;
    `suggested`: some of many, looked up on demand. `unset`: what leaving the field out means if it has no
    default. `reads`: parses what people write; raises ValueError. `positional`: placeholder of a command-line
    argument that has no option; `argument`: placeholder of one that may be typed in place of the option.
    `spelled`: the option, if not the field's name. `label`: name on the web page, if shorter than the help.
    `implies`: values of other fields, by name, once this field is given, even with its default.
    """

    help: str
    group: str = MODEL
    basic: bool = False
    label: str = ""
    unit: str = ""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    choices: Sequence[str] = ()
    suggested: Callable[[], Iterable[str]] | None = None
    hint: str = ""
    example: str = ""
    unset: str = ""
    reads: Callable[[str], Any] | None = None
    positional: str = ""
    argument: str = ""
    spelled: str = ""
    on_page: bool = True
    implies: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Part:
    """Which fields of a nested dataclass can be set, and how their descriptions differ."""

    only: tuple[str, ...]
    instead: Mapping[str, Mapping[str, Any]]


def option(default: Any, help: str, **more: Any) -> Any:  # noqa: A002 - the word that everybody uses for it
    """A dataclass field with a default and a description (see `About`)."""
    return field(default=default, metadata=about(help, **more))


def about(help: str, **more: Any) -> dict[str, Any]:  # noqa: A002
    """The metadata of a field that must be given: `model: str = field(metadata=about(...))`."""
    return {_ABOUT: About(help=help, **more)}


def stated(help: str, unit: str = "") -> dict[str, Any]:  # noqa: A002
    """The metadata of a field that Python alone sets: `help()` says it, no option, form or file has it."""
    return {_STATED: About(help=help, unit=unit)}


def fact(default: Any, help: str, unit: str = "") -> Any:  # noqa: A002
    """A field with a default that Python alone sets, and what it is about."""
    return field(default=default, metadata=stated(help, unit))


def unit_of(name: str) -> str:
    """The unit that the name of a figure says, like seconds of `step_s`; "" where it says none."""
    return _words_and_unit(name)[1]


def heading(name: str) -> str:
    """The name of a figure in words, with its unit: `step_s` is "step, seconds"."""
    return ", ".join(each for each in _words_and_unit(name) if each)


def _words_and_unit(name: str) -> tuple[str, str]:
    if (found := _ENDING.search(name)) is None:
        return name.replace("_", " "), ""
    unit, kept = _UNITS[found[1]] if found[1] else ("USD", "cost")
    kept = kept or ("" if found.start() else _ALONE.get(unit, found[1]))
    words = (name[: found.start()], kept, name[found.end() :])
    return " ".join("_".join(words).replace("_", " ").split()), unit


def part(*only: str, **instead: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata of a field that is a dataclass; its fields `only` (empty: all) can be set one by one.

    `instead`: for a nested field what differs here, like `schedule={"help": "..."}`; `default` too.
    """
    return {_PART: _Part(only, instead)}


@dataclass(frozen=True, slots=True)
class Leaf:
    """One field that can be set: its name, the path to it, its type, default and description."""

    name: str
    within: tuple[str, ...]
    type: Any
    default: Any  # MISSING: it must be given
    about: About

    @property
    def option(self) -> str:
        """The option that sets it, without dashes before it: `mtbf-s`; the first of several spellings."""
        return next(each for each in self.spellings if each.startswith("--")).removeprefix("--")

    @property
    def spellings(self) -> list[str]:
        """All options that set the field, such as `-o` and `--output`; for a switch also the negative one."""
        return [
            each.strip() for part in self.about.spelled.split(",") for each in part.split("/") if each.strip()
        ] or [f"--{self.name.replace('_', '-')}"]

    @property
    def required(self) -> bool:
        """Whether the field must be given."""
        return self.default is MISSING

    def of(self, holder: Any) -> Any:
        """The field's value in `holder`, a dataclass that has the field, nested or not."""
        for name in (*self.within, self.name):
            holder = getattr(holder, name)
        return holder


def leaves(of: Any) -> tuple[Leaf, ...]:
    """All fields of a dataclass that can be set, nested ones too. Raises TypeError for two of one name."""
    return _all_leaves(of)


@cache
def _all_leaves(of: Any) -> tuple[Leaf, ...]:
    found = tuple(_leaves(of, (), None))
    names = [leaf.name for leaf in found]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise TypeError(f"{of.__name__}: declared twice: {', '.join(twice)}")
    return found


def _leaves(of: Any, within: tuple[str, ...], holder: Any) -> Iterable[Leaf]:
    """The fields of a class that can be set; `holder`: an object with their defaults, or None."""
    for each in fields(of):
        default = _default(each) if holder is None else getattr(holder, each.name)
        if _ABOUT in each.metadata:
            yield Leaf(each.name, within, each.type, default, each.metadata[_ABOUT])
        elif _PART in each.metadata:
            wanted: _Part = each.metadata[_PART]
            inner = None if default is MISSING else default
            for leaf in _leaves(each.type, (*within, each.name), inner):
                if leaf.name in wanted.only or not wanted.only:
                    yield _changed(leaf, dict(wanted.instead.get(leaf.name, {})))


def _changed(leaf: Leaf, changes: dict[str, Any]) -> Leaf:
    default = changes.pop("default", leaf.default)
    return replace(leaf, default=default, about=replace(leaf.about, **changes))


def _default(of: "Field[Any]") -> Any:
    return of.default if of.default_factory is MISSING else of.default_factory()


def built(of: type[Class], values: Mapping[str, Any]) -> Class:
    """Build a dataclass from values by field name; other fields take their defaults."""
    known = {(*leaf.within, leaf.name): leaf for leaf in leaves(of)}
    found: Class = _built(of, values, known, ())
    return found


def _built(
    of: Any, values: Mapping[str, Any], known: Mapping[tuple[str, ...], Leaf], at: tuple[str, ...]
) -> Any:
    given: dict[str, Any] = {}
    for each in fields(of):
        place = (*at, each.name)
        if (leaf := known.get(place)) is not None:
            value = values.get(leaf.name, leaf.default)
            given |= {} if value is MISSING else {leaf.name: value}
        elif any(other[: len(place)] == place for other in known):
            given[each.name] = _built(each.type, values, known, place)
    return of(**given)


def described(of: type[Class]) -> type[Class]:
    """Decorate a dataclass or document: its docstring, which `help()` shows, says what each field is about.

    Raises TypeError for a public field that says nothing of itself.
    """
    of.__doc__ = f"{(of.__doc__ or '').rstrip()}\n\nFields:\n" + "\n".join(_lines(of, "    "))
    return of


def _lines(of: Any, indent: str) -> Iterable[str]:
    """A line for each public field: help, then unit, bounds and default; parts with their fields below."""
    if known := getattr(of, "model_fields", None):
        for name, each in known.items():
            yield indent + _line(of, name, About(help=each.description or ""), each.default)
        return
    for each in (item for item in fields(of) if not item.name.startswith("_")):
        if _PART in each.metadata:
            kind: Any = each.type
            yield f"{indent}{each.name}: {kind.__name__}, of which are set:"
            for leaf in _leaves(of, (), None):
                if leaf.within[:1] == (each.name,):
                    yield f"{indent}    {_line(kind, leaf.name, leaf.about, leaf.default)}"
        else:
            words = each.metadata.get(_ABOUT) or each.metadata.get(_STATED) or About(help="")
            yield indent + _line(of, each.name, words, _default(each))


def _line(of: Any, name: str, words: About, default: Any) -> str:
    if not words.help:
        raise TypeError(f"{of.__name__}.{name} says nothing of itself: describe it by `about` or `stated`")
    unset = words.unset if default is None or words.unset else ""
    shown_default = unset or (repr(default) if isinstance(default, bool | int | float | str) else "")
    figures = [words.unit or unit_of(name), bounds_in_words(words)]
    figures.append(f"default: {shown_default}" if shown_default not in ("", "''") else "")
    known = "; ".join(each for each in figures if each)
    return f"{name}: {sentence(words)}" + f" [{known}]" * bool(known)


def sentence(of: About) -> str:
    """Help text of a field, with its choices unless the text already names one."""
    words = of.help
    if of.choices and not any(choice in words for choice in of.choices):
        words = f"{words.rstrip('.')}: {_either(list(of.choices))}."
    return words


class HasDocument:
    """An answer with its figures in a `document`: a notebook shows that."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        shown_document: str = self.document._repr_html_()  # type: ignore[attr-defined]
        return shown_document


def require_valid(holder: Any) -> None:
    """Raise BadInputError or UnknownNameError for a field outside its bounds or choices."""
    for leaf in leaves(type(holder)):
        value = leaf.of(holder)
        if leaf.about.choices and value is not None and value not in leaf.about.choices:
            kind = leaf.name.replace("_", " ")
            raise unknown_name(kind, str(value), leaf.about.choices, leaf.about.hint)
        if isinstance(value, int | float) and not isinstance(value, bool) and value != leaf.default:
            _require_within(leaf, value)


def _require_within(leaf: Leaf, value: float) -> None:
    said = leaf.about
    bounds = (said.least, said.above, said.most, said.below)
    if bounds == (None,) * 4:
        return
    ok = (
        (said.least is None or value >= said.least)
        and (said.above is None or value > said.above)
        and (said.most is None or value <= said.most)
        and (said.below is None or value < said.below)
        and (math.isfinite(value) or isinstance(value, int))
    )
    if not ok:
        unit = said.unit or ("a whole number" if isinstance(value, int) else "a number")
        example = f", e.g. {said.example}" if said.example else ""
        figure = shown(value) if isinstance(value, int) else f"{value:g}"
        raise BadInputError(f"`{leaf.name}={figure}`: give {unit}, {bounds_in_words(said)}{example}")


def bounds_in_words(of: About) -> str:
    """The bounds as a sentence has them: `above zero`, `1 to 3`; "" where there are none."""
    if of.least is not None and of.most is not None:
        return f"{_number(of.least, '0')} to {_number(of.most)}"
    if of.above is not None and of.below is not None:
        return f"between {of.above:g} and {of.below:g}"
    words = [
        f"{_number(of.least)} or more" if of.least is not None else "",
        f"above {_number(of.above)}" if of.above is not None else "",
        f"at most {_number(of.most)}" if of.most is not None else "",
        f"below {_number(of.below)}" if of.below is not None else "",
    ]
    return " and ".join(word for word in words if word)


def _number(bound: float, zero: str = "zero") -> str:
    """A bound in figures; whole numbers in full."""
    if bound == 0:
        return zero
    return str(int(bound)) if bound == int(bound) else f"{bound:g}"


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
