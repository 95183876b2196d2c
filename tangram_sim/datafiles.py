"""Files: finding the shipped data, reading text with errors that name file and line, writing whole."""

import csv
import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tangram_sim.errors import BadInputError


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


def read_csv(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file, cells stripped; a row of the wrong width is an error naming its line."""
    reader = csv.reader(read_text(path).splitlines())
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
        rows.append({column: cell.strip() for column, cell in zip(header, cells, strict=True)})
    return rows


def read_json(path: Path) -> Any:
    """A JSON document; a syntax error names file, line and column."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise BadInputError(
            f"{path}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
        ) from None
    except (RecursionError, ValueError) as error:  # nested too deeply; an integer of thousands of digits
        raise BadInputError(f"{path}: not readable as JSON: {error}") from None


def read_yaml(path: Path) -> Any:
    """A YAML document (one, safe tags only); a syntax error names file and line."""
    import yaml  # 20 ms that `tangram --help` need not pay

    class Unique(yaml.SafeLoader):
        """Safe YAML in which a key given twice is an error, not a silent overwrite."""

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
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
        return yaml.load(text, Loader=Unique)  # a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise BadInputError(f"{path}{where}: not YAML: {problem}") from None
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"{path}: not YAML: {error}") from None


def write_whole(path: Path, text: str) -> None:
    """Write a file completely or leave what was there untouched (a temporary sibling, then a rename).

    Devices and pipes (`/dev/stdout`) are written to, never replaced; a symbolic link keeps its place.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            with path.open("w", encoding="utf-8") as stream:
                stream.write(text)
            return
        target = path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            umask = os.umask(0)
            os.umask(umask)
            Path(temporary).chmod(0o666 & ~umask)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except BrokenPipeError:
        raise  # a reader that has left is no error of the file
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links
        reason = getattr(error, "strerror", None) or error
        raise BadInputError(f"{path}: cannot be written: {reason}") from None
