"""Finding a model: a shipped name, a Hugging Face config.json, or a model.yaml."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tangram_sim.datafiles import read_json_or_yaml, shipped
from tangram_sim.digests import warn_of_change
from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.hwdb.file_kinds import ORDER, is_plan, misplaced
from tangram_sim.hwdb.huggingface import from_config
from tangram_sim.hwdb.model_spelling import folded, meant, words_of
from tangram_sim.models import Model

_NODES = re.compile(r"[^:/\\]+:\d{1,8}([+,][^:/\\]+:\d{1,8})*")  # `H100x8:3+T4x4:2`
_SUFFIXES = (".json", ".yaml", ".yml")
_IN_FOLDER = ("config.json", "model.yaml", "model.yml")
_HINT = "Or give the path of a Hugging Face config.json (or its folder), or of a model.yaml."


@cache
def _files() -> dict[str, Path]:
    """Shipped models by name."""
    folder = shipped("hwdb") / "models"
    return {path.stem: path for path in sorted(folder.iterdir()) if path.suffix in _SUFFIXES}


@cache
def _aliases() -> dict[str, str]:
    """Names and aliases (hub ids and other spellings) of shipped models, in lower case."""
    names = {name.lower(): name for name in _files()}
    for name, path in _files().items():
        names |= {alias.lower(): name for alias in _facts(path).get("aliases", [])}
    return names


@cache
def _folded() -> dict[str, str]:
    """Shipped models by the folded spelling of each of their names."""
    found: dict[str, str] = {}
    for name in (*_files(), *_aliases()):
        found.setdefault(folded(words_of(name)), _aliases()[name.lower()])
    return found


def shipped_name(given: str) -> str | None:
    """The shipped model that `given` names, as written or as a variant of it; None for other names."""
    if given in _files():
        return given
    if alias := _aliases().get(given.lower()):
        return alias
    return meant(given, _folded(), lambda name: float(_shipped(name).parameters))


def _facts(path: Path) -> dict[str, Any]:
    facts = read_json_or_yaml(path)
    if not isinstance(facts, dict):
        raise BadInputError(f"{path}: expected a Hugging Face config.json or a model.yaml, not a plain value")
    return facts


def model_names() -> list[str]:
    """Names of the shipped models, sorted."""
    return sorted(_files())


def published(name: str) -> dict[str, Any]:
    """The publisher's figures on the size of a shipped model: keys of its file starting with `published_`."""
    return {key: value for key, value in _facts(_files()[name]).items() if key.startswith("published_")}


def _read(path: Path, name: str) -> Model:
    """Read a model file of any format, recognised by its content."""
    facts = _facts(path)
    if is_plan(facts, path):
        warn_of_change(facts, path)
        from tangram_sim.hwdb.model_section import model_from_dict  # pydantic, as below

        return model_from_dict(facts["model"], str(path))
    if other := misplaced(facts, "model"):
        raise BadInputError(f"{path} is {other}")
    if "model_type" in facts or (path.suffix == ".json" and "layers" not in facts):
        return from_config(facts, str(path), name)
    from tangram_sim.hwdb.model_file import from_model_file  # pydantic: 0.1 s most commands need not pay

    return from_model_file(facts, str(path), name)


@cache
def _shipped(name: str) -> Model:
    # Its parameters are held against the published ones: what its file leaves out is known.
    return replace(_read(_files()[name], name), defaults=())


def _read_path(path: Path) -> Model:
    """Read a user's file or folder; a config.json takes the name of its folder."""
    if path.is_dir():
        found = next((path / name for name in _IN_FOLDER if (path / name).is_file()), None)
        if found is None:
            raise BadInputError(f"{path}: a folder with neither config.json nor model.yaml in it")
        path = found
    if path.suffix not in _SUFFIXES:
        raise BadInputError(
            f"{path}: expected a .json (Hugging Face) or .yaml (model file), not {path.suffix!r}"
        )
    return _read(path, path.resolve().parent.name if path.name in _IN_FOLDER else path.stem)


def hub_name(name: str) -> str:
    """The name on the Hugging Face hub of a shipped model, or empty where its file states none."""
    aliases = _facts(_files()[name]).get("aliases", []) if name in _files() else []
    return next((alias for alias in aliases if "/" in alias), "")


def is_model_name(given: str) -> bool:
    """Whether a shipped model has this name, alias or variant."""
    return shipped_name(given) is not None


def _is_cluster(given: str) -> bool:
    """Whether a shipped cluster has this name, or the text is nodes with counts."""
    shipped_clusters = {path.stem for path in (shipped("hwdb") / "clusters").glob("*.yaml")}
    return given in shipped_clusters or _NODES.fullmatch(given) is not None


def load_model(name_or_path: str) -> Model:
    """The model of a shipped name (or an alias or variant of it), or of the file or folder at a path.

    A shipped name takes precedence over a file of that name; write `./name` for the file. Raises
    BadInputError for an invalid file and UnknownNameError, with the nearest names, otherwise.
    """
    if name_or_path in _files():
        return _shipped(name_or_path)
    path = Path(name_or_path)
    try:
        exists = bool(name_or_path) and path.exists()
    except (OSError, ValueError):  # too long for a path, or with a NUL in it
        exists = False
    if exists:
        return _read_path(path)
    alias = shipped_name(name_or_path)
    if alias is not None:
        return _shipped(alias)
    if path.suffix in _SUFFIXES:
        raise BadInputError(f"{name_or_path}: no such file. {_HINT}")
    if _is_cluster(name_or_path):
        raise BadInputError(f"`{name_or_path[:80]}` is a cluster, given for a model: {ORDER}")
    raise unknown_name("model", name_or_path[:80], _files(), _HINT)
