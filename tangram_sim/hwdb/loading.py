"""Loading the folders of the hardware database: tables merged row by row and checked as a whole.

The shipped folder comes first and overlays follow; a later folder takes precedence cell by cell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.hwdb import collectives
from tangram_sim.hwdb.efficiency import DTYPES, EfficiencyTable, check
from tangram_sim.hwdb.tables import Column, Names, Row, read_rows, read_schema, require

LINK_KINDS = ("nvlink", "nvlink-bridge", "xgmi", "pcie", "network", "none", "other")
_KINDS = {"gpus": "GPU", "links": "link", "nodes": "node"}
_ALIAS_TABLE = {"gpu": "gpus", "link": "links", "node": "nodes"}
_REFERENCES = {
    "gpus": (("link", "links"),),
    "nodes": (("gpu", "gpus"), ("intra_link", "links"), ("nic", "links")),
}

Schema = Mapping[str, Mapping[str, Column]]
Located = tuple[str, dict[str, str]]  # ("FILE, line N", filled cells)


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Content of the folders: rows by table and canonical name, names, efficiencies, collectives."""

    rows: dict[str, dict[str, Row]]
    names: dict[str, Names]
    efficiency: EfficiencyTable
    collectives: collectives.CollectiveTable


def read_folders(folders: Sequence[Path]) -> Tables:
    """The tables of `folders`: the shipped one, then overlays.

    Raises BadInputError naming file, line and column.
    """
    base = folders[0]
    schema = read_schema(base / "schema.csv")
    for overlay in folders[1:]:
        _check_overlay(overlay, base)
    aliases = [located for folder in folders for located in _rows(folder / "aliases.csv", "aliases", schema)]
    _check_alias_rows(aliases)
    rows: dict[str, dict[str, Row]] = {table: {} for table in _KINDS}
    for table, merged in rows.items():
        for folder in folders:
            spellings = None if folder is base else _names(table, merged, aliases)
            _merge(table, merged, folder, spellings, schema)
    names = {table: _names(table, merged, aliases) for table, merged in rows.items()}
    _check_alias_targets(rows, aliases)
    _check_references(rows, names)
    _check_links(rows["links"])
    efficiency = _efficiency_rows(folders, schema, names["gpus"], rows["gpus"])
    measured = collectives.CollectiveTable(_collective_rows(folders, schema, names, rows["gpus"]))
    return Tables(rows, names, EfficiencyTable(efficiency), measured)


def _rows(path: Path, table: str, schema: Schema) -> list[Located]:
    return list(read_rows(path, table, schema[table])) if path.exists() else []


def _check_overlay(overlay: Path, base: Path) -> None:
    """Raise BadInputError for an overlay that would have no effect: a missing, empty or misspelled file."""
    tables = [path.name for path in base.glob("*.csv") if path.name != "schema.csv"]
    named = (*sorted(tables), "efficiency/*.csv", "collectives/*.csv", "serving/*.csv", "post_training/*.csv")
    named = (*named, "clusters/*.yaml")
    wanted = f"give a folder with any of {', '.join(named)}"
    if not overlay.is_dir():
        raise BadInputError(f"`hwdb={overlay}`: no such folder; {wanted}")
    for path in sorted(overlay.glob("*.csv")):
        if path.name not in (*tables, "schema.csv"):
            raise BadInputError(f"{path}: {unknown_name('table', path.name, tables)}")
    patterns = ("*.csv", *named[len(tables) :])
    if not any(True for pattern in patterns for _ in overlay.glob(pattern)):
        raise BadInputError(f"`hwdb={overlay}`: the folder holds no table; {wanted}")


def _merge(table: str, rows: dict[str, Row], folder: Path, spellings: Names | None, schema: Schema) -> None:
    """Merge one folder's file into `rows`; `spellings` finds the known row that an overlay means."""
    seen: dict[str, str] = {}
    for where, cells in _rows(folder / f"{table}.csv", table, schema):
        given = cells.get("name", "")
        if not given:
            raise BadInputError(f"{where}: the row has no name; column 'name' says which row it is")
        name = (spellings.find(given) if spellings is not None else None) or given
        if name in seen:
            raise BadInputError(f"{where}: {_KINDS[table]} {name!r} is given twice, first at {seen[name]}")
        seen[name] = where
        old = rows.get(name)
        merged = Row(table, name, dict(old.cells) if old else {}, dict(old.origins) if old else {})
        merged.cells |= cells | {"name": name}
        merged.origins |= dict.fromkeys(cells, where)
        require(merged, schema[table].values(), where)
        rows[name] = merged


def _names(table: str, canonical: Mapping[str, Row], aliases: Sequence[Located]) -> Names:
    names = Names(_KINDS[table], canonical)
    # A later folder may give an alias another meaning.
    last = {cells["alias"]: cells["name"] for _, cells in aliases if _ALIAS_TABLE[cells["kind"]] == table}
    for alias, name in last.items():
        names.add(alias, name)
    return names


def _check_alias_rows(aliases: Sequence[Located]) -> None:
    for where, cells in aliases:
        if not {"alias", "kind", "name"} <= cells.keys():
            raise BadInputError(f"{where}: an alias row needs alias, kind and name")
        if cells["kind"] not in _ALIAS_TABLE:
            problem = unknown_name("kind of alias", cells["kind"], _ALIAS_TABLE)
            raise BadInputError(f"{where}, column kind: {problem}")


def _check_alias_targets(rows: Mapping[str, Mapping[str, Row]], aliases: Sequence[Located]) -> None:
    for where, cells in aliases:
        table = _ALIAS_TABLE[cells["kind"]]
        if cells["name"] not in rows[table]:
            problem = unknown_name(_KINDS[table], cells["name"], rows[table])
            raise BadInputError(f"{where}, column name: {problem}")


def _check_references(rows: Mapping[str, Mapping[str, Row]], names: Mapping[str, Names]) -> None:
    """Check that every name in a row is a row of its table, and replace it by the canonical spelling."""
    for table, references in _REFERENCES.items():
        for row in rows[table].values():
            for column, target in references:
                given = row[column]
                if not given:
                    continue
                found = names[target].find(given)
                if found is None:
                    problem = unknown_name(_KINDS[target], given, rows[target])
                    raise BadInputError(f"{row.origins[column]}, column {column}: {problem}")
                row.cells[column] = found


def _check_links(links: Mapping[str, Row]) -> None:
    for row in links.values():
        if row["kind"] not in LINK_KINDS:
            problem = unknown_name("kind of link", row["kind"], LINK_KINDS)
            raise BadInputError(f"{row.origins['kind']}, column kind: {problem}")
        if row["kind"] != "none" and not row.number("gb_per_s"):
            raise BadInputError(f"{row.origins['gb_per_s']}, column gb_per_s: 0 is for kind none only")


def _efficiency_rows(
    folders: Sequence[Path], schema: Schema, names: Names, gpus: Mapping[str, Row]
) -> list[tuple[int, Row]]:
    """(layer, row) of every efficiency file, column gpu in canonical spelling."""
    columns = schema["efficiency"]
    keys = ("gpu", "dtype", "kernel", "stack", "version", "parameter")
    found = []
    for layer, folder in enumerate(folders):
        for path in sorted((folder / "efficiency").glob("*.csv")):
            seen: dict[str, str] = {}
            for where, cells in read_rows(path, "efficiency", columns):
                if "gpu" in cells:
                    cells["gpu"] = _subject(cells["gpu"], where, names, gpus)
                name = "/".join(cells.get(column, "") for column in keys)
                if name in seen:
                    raise BadInputError(f"{where}: the row {name} is given twice, first at {seen[name]}")
                seen[name] = where
                row = Row("efficiency", name, cells, dict.fromkeys(cells, where))
                require(row, columns.values(), where)
                if row["dtype"] not in (*DTYPES, "*"):
                    problem = unknown_name("dtype", row["dtype"], (*DTYPES, "*"))
                    raise BadInputError(f"{where}, column dtype: {problem}")
                check(row, where)
                found.append((layer, row))
    return found


def _collective_rows(
    folders: Sequence[Path], schema: Schema, names: Mapping[str, Names], gpus: Mapping[str, Row]
) -> list[tuple[int, Row]]:
    """(layer, row) of every collectives file, with names in canonical spelling."""
    columns = schema["collectives"]
    keys = ("link", "gpu", "pattern", "parameter")
    found = []
    for layer, folder in enumerate(folders):
        for path in sorted((folder / "collectives").glob("*.csv")):
            seen: dict[str, str] = {}
            for where, cells in read_rows(path, "collectives", columns):
                row = Row("collectives", "", cells, dict.fromkeys(cells, where))
                require(row, columns.values(), where)
                if cells["gpu"] != "*":
                    cells["gpu"] = _subject(cells["gpu"], where, names["gpus"], gpus)
                _check_link_subject(cells["link"], where, names["links"])
                collectives.check(row, where)
                row.name = "/".join(cells[column] for column in keys)
                if row.name in seen:
                    raise BadInputError(
                        f"{where}: the row {row.name} is given twice, first at {seen[row.name]}"
                    )
                seen[row.name] = where
                found.append((layer, row))
    return found


def _check_link_subject(given: str, where: str, names: Names) -> None:
    """Raise BadInputError unless column link has a canonical link name, `kind:NAME` or `*`."""
    prefix, _, rest = given.partition(":")
    if given == "*" or (prefix == "kind" and rest in LINK_KINDS):
        return
    if given not in names.canonical:
        problem = unknown_name("link", given, names.canonical, "Or write kind:NAME or *.")
        raise BadInputError(f"{where}, column link: {problem}")


def _subject(given: str, where: str, names: Names, gpus: Mapping[str, Row]) -> str:
    """The subject of an efficiency row in canonical spelling: a GPU, arch:, kind:, link: or `*`."""
    prefix, _, rest = given.partition(":")
    if given == "*" or prefix == "link":
        return given
    if prefix == "arch":
        known = {row["architecture"] for row in gpus.values()}
        if rest not in known:
            raise BadInputError(f"{where}, column gpu: {unknown_name('architecture', rest, known)}")
        return given
    if prefix == "kind":
        if rest not in LINK_KINDS:
            raise BadInputError(f"{where}, column gpu: {unknown_name('kind of link', rest, LINK_KINDS)}")
        return given
    found = names.find(given)
    if found is None:
        hint = "Or write arch:NAME, kind:NAME, link:NAME or *."
        raise BadInputError(f"{where}, column gpu: {unknown_name('GPU', given, gpus, hint)}")
    return found
