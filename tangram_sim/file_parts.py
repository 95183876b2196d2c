"""Base of what is read from users' files, mapping by mapping: no unknown keys, no `true` for a number.

Clusters and models have formats of their own, which are as strict about figures (`strict`).
"""

from collections.abc import Collection
from dataclasses import fields, is_dataclass
from functools import cache
from html import escape
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Self, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError, field_validator
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import ValidationInfo

from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.fields import heading, unit_of
from tangram_sim.naming import fault_of_name, fault_of_text

if TYPE_CHECKING:
    import pandas as pd


def _as_name(name: str) -> str:
    """Return a valid name, or raise a pydantic error that says what is wrong with it."""
    if fault := fault_of_name(name):
        raise PydanticCustomError("no_name", "{fault}", {"fault": f"no name: {fault}"})
    return name


def _as_text(text: str) -> str:
    """Return the text, or raise a pydantic error for control characters or line breaks."""
    if fault := fault_of_text(text):
        raise PydanticCustomError(
            "no_text", "{fault}", {"fault": f"printable text on one line is wanted: {fault}"}
        )
    return text


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not isfinite(value) else value


# A figure that may be endless or unknown, which JSON cannot say: null.
FiniteOrNull = Annotated[float | None, BeforeValidator(_finite)]
Text = Annotated[str, AfterValidator(_as_text)]
# Of a model, a replica, a kind of GPU: it ends up in scripts and logs.
Name = Annotated[str, AfterValidator(_as_name)]


def _without_fields(schema: dict[str, Any]) -> None:
    """Leave out of a JSON Schema's description the fields that `help()` lists: they are its properties."""
    if "description" in schema:
        schema["description"] = schema["description"].split("\n\nFields:")[0]


class FilePart(BaseModel):
    """One mapping of a file or an answer, frozen. Unknown keys and infinite or NaN figures are errors.

    Python counts `true` as 1, and so does pydantic: where a number or text is wanted, it is refused here.
    """

    model_config = ConfigDict(
        extra="forbid", allow_inf_nan=False, frozen=True, json_schema_extra=_without_fields
    )

    def _repr_html_(self) -> str:
        """What a notebook shows: figures with units, those of parts below their names; tables; sentences."""
        facts, tables = _facts_and_tables(self)
        rows = [{"figure": name, "value": value} for name, value in facts.items()]
        return "".join(_html_table(*each) for each in ((type(self).__name__, rows), *tables))

    def to_frame(self, table: str = "") -> "pd.DataFrame":
        """One of the answer's tables as a pandas frame, a row per part; SI units.

        `table` names a list of parts among its fields, by default the first one that is not empty. Raises
        `UnknownNameError` where there is no such table.
        """
        import pandas as pd  # takes a third of a second: only where a table is asked for

        held = {name: getattr(self, name) for name in type(self).model_fields}
        tables = [
            name
            for name, rows in held.items()
            if isinstance(rows, list) and rows and (isinstance(rows[0], FilePart) or is_dataclass(rows[0]))
        ]
        if not tables or (table and table not in tables):
            raise unknown_name(f"table of {type(self).__name__}", table, tables)
        return pd.DataFrame(self.model_dump(include={table or tables[0]})[table or tables[0]])

    @classmethod
    def read(cls, data: Any, where: str) -> Self:
        """The part that `data` is. Raises BadInputError naming `where` and the first key that is wrong."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise BadInputError(f"{where}: {first_problem(error)}") from None

    @classmethod
    def from_objects(cls, *sources: object, **given: Any) -> Self:
        """Build the document from objects: each field from the first object with an attribute of its name.

        Fields in `given` are as given; nested parts are read in the same way.
        """
        found = {
            name: next(getattr(source, name) for source in sources if hasattr(source, name))
            for name in cls.model_fields
            if name not in given and any(hasattr(source, name) for source in sources)
        }
        return cls.model_validate(found | given, from_attributes=True)

    def with_fields(self, **changes: Any) -> Self:
        """A copy in which these fields have other values, which are not validated anew.

        Raises TypeError for a name that is no field.
        """
        if unknown := changes.keys() - type(self).model_fields.keys():
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        return self.model_copy(update=changes)

    @field_validator("*", mode="before")
    @classmethod
    def no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Return the value; raise an error where it is or contains a bool and the field takes none."""
        if isinstance(value, bool | list | tuple | dict):
            truths, parts, keys = _takes(cls, info.field_name or "")
            way = None if truths else _way_to_truth(value, () if parts else keys, into_mappings=not parts)
            if way is not None:
                shown = str(value).lower() if isinstance(value, bool) else "true or false"
                where = ".".join(way) + ": " if way else ""
                raise PydanticCustomError("no_number", f"{where}{shown} is no number and no text")
        return value


# What an answer rests on rather than says: in its JSON, not in what a notebook shows.
_UNSHOWN = {"question", "schema_version", "package_version", "digest", "hwdb_hash", "hwdb_rows", "fleet"}


def _facts_and_tables(of: FilePart, above: str = "") -> tuple[dict[str, Any], list[tuple[str, list[Any]]]]:
    """Figures and words by name, its own before those of its parts; (title, rows) of what it lists."""
    facts, inner, tables = dict[str, Any](), dict[str, Any](), list[tuple[str, list[Any]]]()
    for name, value in sorted(_held(of).items(), key=lambda item: isinstance(item[1], bool | str)):
        title = f"{above}{_head(name)}"
        if isinstance(value, FilePart):
            figures, lists = _facts_and_tables(value, f"{title}: ")
            inner, tables = inner | figures, tables + lists
        elif isinstance(value, list):
            tables.append((title, _rows(name, value)))
        elif isinstance(value, dict):
            rows = _rows(name, [*value.values()])
            if all(_is_plain(part) or "" not in _fields(part) for part in value.values()):
                tables.append((title, [{"": key} | row for key, row in zip(value, rows, strict=True)]))
        else:
            facts[title] = _cell(name, value)
    return facts | inner, tables


def _fields(of: Any) -> dict[str, Any]:
    """What a part holds, by field; a figure or a text that is no part: itself, by no name."""
    if isinstance(of, FilePart):
        return {name: getattr(of, name) for name in type(of).model_fields if name not in _UNSHOWN}
    if is_dataclass(of):  # a noun that stands in a document as it is
        return {each.name: getattr(of, each.name) for each in fields(of)}
    return {"": of}


def _held(of: Any) -> dict[str, Any]:
    """What a part says beside its defaults, by field; all that a noun holds."""
    held = _fields(of)
    if not isinstance(of, FilePart):
        return held
    known = type(of).model_fields
    return {name: held[name] for name in held if held[name] not in (None, [], {}, "", known[name].default)}


def _rows(name: str, parts: list[Any]) -> list[dict[str, Any]]:
    """The figures and words of each part of field `name` by heading; what a part holds in turn is left out.

    Left out is also what has its default in all parts.
    """
    said = dict.fromkeys(each for part in parts for each, value in _held(part).items() if _is_plain(value))
    return [
        {
            _head(each) if each else "value": _cell(each or name, value) if _is_plain(value) else ""
            for each, value in ((each, _fields(part).get(each)) for each in said)
        }
        for part in parts
    ]


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def _head(name: str) -> str:
    return heading(name).replace(", bytes", ", GiB") if unit_of(name) == "bytes" else heading(name)


def _cell(name: str, value: Any) -> Any:
    """A figure with four digits, bytes in GiB; of several a text."""
    if isinstance(value, tuple):
        return ", ".join(str(_cell(name, each)) for each in value)
    value = value / 2**30 if unit_of(name) == "bytes" else value
    return f"{value:,.4g}" if isinstance(value, float) else value


def _html_table(title: str, rows: list[Any]) -> str:
    import pandas as pd

    table: str = pd.DataFrame(rows, dtype=object).to_html(index=False, border=0)
    return f"<h4>{escape(title)}</h4>{table}"


@cache
def _takes(of: type[FilePart], field: str) -> tuple[bool, bool, frozenset[str]]:
    """Whether a field takes true and false, and parts that check themselves; keys of nouns that take it."""
    leaves = list(_leaves(of.model_fields[field].annotation))
    parts = any(isinstance(leaf, type) and issubclass(leaf, FilePart) for leaf in leaves)
    keys = (key for leaf in leaves if is_dataclass(leaf) for key in fields(leaf) if bool in _leaves(key.type))
    truths = any(leaf is bool or leaf is Any or isinstance(leaf, bool) for leaf in leaves)
    return truths, parts, frozenset(key.name for key in keys)


def _leaves(annotation: Any) -> list[Any]:
    """The types of which an annotation is made, and what a Literal lists."""
    inner = get_args(annotation)
    return [leaf for item in inner for leaf in _leaves(item)] if inner else [annotation]


def _way_to_truth(value: Any, keys: Collection[str], *, into_mappings: bool) -> list[str] | None:
    """The keys on the way to true or false where neither may be, other than `keys`; None: it is nowhere."""
    inner: list[tuple[str, Any]] = []
    if isinstance(value, dict) and into_mappings:
        inner = [(str(key), item) for key, item in value.items() if key not in keys]
    elif isinstance(value, list | tuple):
        inner = [("", item) for item in value]
    for key, item in inner:
        way = _way_to_truth(item, keys, into_mappings=into_mappings)
        if way is not None:
            return [key, *way] if key else way
    return [] if isinstance(value, bool) else None


def first_problem(error: ValidationError) -> str:
    """The first problem of a validation error in plain words: key path and complaint."""
    problem = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in problem["loc"])
    more = f" (and {error.error_count() - 1} more problems)" if error.error_count() > 1 else ""
    # A noun says of keys that it lacks what Python says of arguments.
    unknown = problem["type"] == "unexpected_keyword_argument"
    complaint = "extra inputs are not permitted" if unknown else problem["msg"].lower()
    return f"{path or 'document'}: {complaint}{more}"
