"""Files: finding the shipped data, reading text with errors that name file and line, writing whole."""

import csv
import errno
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from tangram_sim.errors import BadInputError, shown

_MOST_YAML = 2_000_000  # entries of one document; a graph stated in full for 10^5 nodes has fewer
# What constructors of `!!int`, `!!bool`, `!!timestamp` and their kin raise for values that are none.
_TOKENS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@cache
def shipped(folder: str) -> Path:
    """The folder of curated data: inside the wheel first, else beside the package (source tree, editable)."""
    package = Path(__file__).resolve().parent
    for candidate in (package / "_data" / folder, package.parent / folder):
        if candidate.is_dir():
            return candidate
    raise BadInputError(
        f"the data folder {folder!r} is missing from this installation of tangram-sim; reinstall it"
    )


def read_text(path: Path) -> str:
    """The text of a user's file.

    Raises BadInputError when it is missing, a folder, unreadable or not UTF-8 text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadInputError(f"{path}: not a text file (byte {error.start} is not UTF-8)") from None
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read: {error.strerror or error}") from None


@contextmanager
def naming_csv(where: object) -> Iterator[None]:
    """Context that turns csv.Error (an unterminated cell, say) into a BadInputError naming `where`."""
    try:
        yield
    except csv.Error as error:
        raise BadInputError(f"{where}: not CSV: {error}") from None


def read_csv(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file, cells stripped; a row of the wrong width is an error naming its line."""
    header, rows = csv_cells(path)
    return [dict(zip(header, cells, strict=True)) for _, cells in rows]


def csv_cells(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Header, and rows with their line numbers; as `read_csv`."""
    with naming_csv(path):
        return _cells(path, read_text(path).removeprefix("\ufeff"))


def _cells(path: Path, text: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    reader = csv.reader(text.splitlines())
    header = [cell.strip() for cell in next(reader, [])]
    rows = []
    for cells in reader:
        if not cells:
            continue
        if len(cells) != len(header):
            raise BadInputError(
                f"{path}, line {reader.line_num}: {len(cells)} cells where the header has {len(header)} "
                "columns"
            )
        rows.append((reader.line_num, [cell.strip() for cell in cells]))
    return header, rows


def read_json(path: Path) -> Any:
    """A JSON document; a syntax error names file, line and column."""
    return parse_json(read_text(path), path)


def parse_json(text: str, where: object, line: int = 0) -> Any:
    """Parse the JSON text of `where`: the only place in which JSON from outside is read.

    `line` is given where the text is that one line of `where`. Raises BadInputError with the place of a
    syntax error, for nesting that is too deep, and for integers of thousands of digits.
    """
    place = f"{where}, line {line}" if line else f"{where}"
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = "" if line else f", line {error.lineno}"
        raise BadInputError(f"{place}{at}, column {error.colno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise BadInputError(f"{place}: not JSON that can be read: nested too deeply") from None
    except ValueError as error:
        raise BadInputError(f"{place}: not JSON that can be read: {error}") from None


def read_yaml(path: Path) -> Any:
    """A YAML document (one, safe tags only); a syntax error names file and line."""
    import yaml  # 20 ms that `tangram --help` need not pay

    class Unique(yaml.SafeLoader):
        """Safe YAML in which a key given twice is an error, not a silent overwrite."""

        def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep)
            except _TOKENS:
                kind = str(node.tag).removeprefix("tag:yaml.org,2002:")
                place = f"{path}, line {node.start_mark.line + 1}"
                raise BadInputError(f"{place}: {shown(node.value)} is no {kind}") from None

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        if not isinstance(node, yaml.MappingNode):  # `!!map` before something that is none
            raise BadInputError(f"{path}, line {node.start_mark.line + 1}: !!map wants keys with values")
        for key_node, _ in node.value:
            key = loader.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float | bool):
                raise BadInputError(f"{path}, line {key_node.start_mark.line + 1}: a key must be plain text")
            if key in seen:
                raise BadInputError(
                    f"{path}, line {key_node.start_mark.line + 1}: key {key!r} is given twice"
                )
            seen.add(key)
        return yaml.SafeLoader.construct_mapping(loader, node, deep=deep)

    Unique.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    text = read_text(path)
    try:
        loader = Unique(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _written_out(node, {}) > _MOST_YAML:
            raise BadInputError(f"{path}: aliases make it longer than {_MOST_YAML:,} entries, or endless")
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise BadInputError(f"{path}{where}: not YAML: {problem}") from None
    except RecursionError:
        raise BadInputError(f"{path}: not YAML: nested too deeply") from None


def read_json_or_yaml(path: Path) -> Any:
    """A JSON document where the file's name ends so, a YAML document elsewhere."""
    return read_json(path) if path.suffix.lower() == ".json" else read_yaml(path)


def read_yaml_mapping(path: Path, wanted: str) -> dict[Any, Any]:
    """A YAML mapping; `wanted` names the expected keys in the error for any other document."""
    data = read_yaml(path)
    if not isinstance(data, dict):
        given = "nothing is in it" if data is None else f"{shown(data)} is in it"
        raise BadInputError(f"{path}: {given}; keys with values are wanted: {wanted}")
    return data


def _written_out(node: Any, known: dict[int, float]) -> float:
    """Number of entries of a YAML node with all aliases expanded; infinite for one that contains itself."""
    if id(node) in known:
        return known[id(node)]
    if isinstance(node.value, str):
        return 1
    known[id(node)] = float("inf")  # met again before it is done: it holds itself
    inner = [part for entry in node.value for part in (entry if isinstance(entry, tuple) else (entry,))]
    known[id(node)] = 1 + sum(_written_out(part, known) for part in inner)
    return known[id(node)]


def write_whole(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a file completely or leave what was there untouched; as `write_all`."""
    write_all({path: text}, mode)


def write_all(files: Mapping[Path, str], mode: int = 0o666) -> None:
    """Write several files, or none where one cannot be written: what was there before stays untouched.

    `mode`: permissions of new files, less what the process' umask takes away.

    All are written beside their places and then renamed, so a disk that fills up half-way changes nothing.
    Devices and pipes (`/dev/stdout`) are written to, never replaced; a symbolic link keeps its place.
    Raises BadInputError that names the file.
    """
    written: list[tuple[Path, Path]] = []
    made: list[Path] = []
    try:
        for path, text in files.items():
            with _naming_unwritable(path):
                if path.exists() and not path.is_file() and not path.is_dir():
                    with path.open("w", encoding="utf-8") as stream:
                        stream.write(text)
                    continue
                target = path.resolve()
                if target.is_dir():
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
                made += [folder for folder in (target.parent, *target.parent.parents) if not folder.exists()]
                target.parent.mkdir(parents=True, exist_ok=True)
                handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.")
                written.append((Path(temporary), target))
                with os.fdopen(handle, "w", encoding="utf-8") as stream:
                    stream.write(text)
                    stream.flush()
                    os.fsync(handle)
                umask = os.umask(0)
                os.umask(umask)
                Path(temporary).chmod(mode & ~umask)
        for temporary_path, target in written:
            with _naming_unwritable(target):
                temporary_path.replace(target)
    except BaseException:
        for temporary_path, _ in written:
            temporary_path.unlink(missing_ok=True)
        for folder in made:
            with suppress(OSError):  # something else lies in it by now
                folder.rmdir()
        raise


@contextmanager
def _naming_unwritable(path: Path) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # a reader that has left is no error of the file
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links
        reason = getattr(error, "strerror", None) or error
        raise BadInputError(f"{path}: cannot be written: {reason}") from None
