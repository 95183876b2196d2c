"""Command-line options, derived from the fields of questions (`tangram_sim.fields`).

A verb marked `@derived` may take parameters whose type is a dataclass with described fields: each such field
becomes an option of the verb, and the verb gets the filled dataclass. A verb that takes a question also has
--save-question, and the question's docstring as its help.
"""

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_origin

import typer

from tangram_sim.cli.wording import as_options
from tangram_sim.errors import BadInputError
from tangram_sim.fields import OUTPUT, About, Leaf, built, leaves, option, require_valid, sentence
from tangram_sim.questions.question import Question, question_text

Command = Callable[..., None]


@dataclasses.dataclass(frozen=True, slots=True)
class Keeping:
    """The option to save the question."""

    save_question: Path | None = option(
        None,
        "Write the question to this YAML file; `tangram run` asks it again.",
        group=OUTPUT,
        on_page=False,
    )


class _Untyped(str):
    """A default value, distinguishable from the same word typed by the user."""

    __slots__ = ()


def derived(command: Command) -> Command:
    """Decorate a verb: parameters that are dataclasses of described fields are replaced by options.

    Raises TypeError, at import and not when the verb runs, if two options have one name.
    """
    given = list(inspect.signature(command).parameters.values())
    groups: dict[str, Any] = {
        each.name: each.annotation for each in given if dataclasses.is_dataclass(each.annotation)
    }
    question = next((kind for kind in groups.values() if issubclass(kind, Question)), None)
    if question is not None:
        groups["keeping"] = Keeping
    found: list[Leaf] = [leaf for kind in groups.values() for leaf in leaves(kind)]
    parameters = [parameter for each in given for parameter in _parameters(each)]
    parameters += [_argument(leaf) for leaf in found if leaf.about.argument]
    parameters += [_parameter(leaf) for leaf in leaves(Keeping) if question is not None]
    names = [each.name for each in parameters]
    if len(set(names)) < len(names):
        raise TypeError(f"{command.__name__}: an option is declared twice among {', '.join(names)}")

    @functools.wraps(command)
    def run(**options: Any) -> None:
        for name, kind in groups.items():
            stated = {leaf.name: _stated(leaf, options) for leaf in leaves(kind)}
            values = {leaf.name: _value(leaf, stated[leaf.name]) for leaf in leaves(kind)}
            values |= _implied(kind, stated)
            options[name] = built(kind, values)
            require_valid(options[name])
        keeping = options.pop("keeping", Keeping())
        if keeping.save_question is not None:
            from tangram_sim.cli.writing import require_writable

            require_writable(save_question=keeping.save_question)
        command(**options)
        if keeping.save_question is not None:  # like every file, only beside an answer
            from tangram_sim.datafiles import write_whole

            asked = next(each for each in options.values() if isinstance(each, Question))
            write_whole(keeping.save_question, question_text(asked))

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    if question is not None:
        run.__doc__ = (question.__doc__ or "").split("\n\nFields:")[0]
    run.__dict__["leaves"] = {leaf.name: leaf for leaf in found}
    return run


def _argument(leaf: Leaf) -> inspect.Parameter:
    """The positional argument that may replace an option."""
    completing = _completing(leaf.about) if leaf.about.suggested is not None else None
    words = f"The same as --{leaf.option}."
    argument = typer.Argument(metavar=leaf.about.argument, help=words, autocompletion=completing)
    return inspect.Parameter(
        _beside(leaf),
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[str | None, argument],
    )


def _beside(leaf: Leaf) -> str:
    return f"{leaf.name}_argument"


def _stated(leaf: Leaf, options: dict[str, Any]) -> Any:
    """The typed value of a field, from its option or its argument. Raises BadInputError for both or none."""
    typed = options.pop(leaf.name)
    argument = options.pop(_beside(leaf), None)
    if argument is None and typed is None and leaf.required:
        raise BadInputError(f"`{leaf.name}=` is missing: give it, or type it after the model")
    if argument is not None and typed != leaf.default and typed is not None:
        raise BadInputError(f"`{leaf.name}=` is given twice: {argument} and {typed}")
    return typed if argument is None else argument


def _implied(kind: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Values implied by typed options for other options that have their defaults."""
    typed = [leaf for leaf in leaves(kind) if not isinstance(given[leaf.name], _Untyped)]
    defaults = {leaf.name: leaf.default for leaf in leaves(kind)}
    implied = {name: value for leaf in typed for name, value in leaf.about.implies.items()}
    return {name: value for name, value in implied.items() if given[name] == defaults[name]}


def asking(command: Command, **kinds: type[Any]) -> Command:
    """Make a verb from a command with parameters of these types; see `derived`."""
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=of) for name, of in kinds.items()]
    )
    return derived(command)


def with_options(command: Command, kind: type[Any]) -> Command:
    """The verb with an option added for each field of a dataclass; for verbs that wrap another one."""
    own = list(inspect.signature(command).parameters.values())
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
    parameters += map(_parameter, leaves(kind))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__dict__["leaves"] = command.__dict__.get("leaves", {}) | {
        leaf.name: leaf for leaf in leaves(kind)
    }
    return command


def renamed(command: Command, old: str, new: str) -> Command:
    """A verb under its old name: it prints a note with the new name on standard error, and runs."""

    @functools.wraps(command)
    def run(**options: Any) -> None:
        sys.stderr.write(f"note: `tangram {old}` is now `tangram {new}`\n")
        command(**options)

    return run


def _parameters(given: inspect.Parameter) -> list[inspect.Parameter]:
    """The parameters that replace one: one per field if its type is a dataclass."""
    if not dataclasses.is_dataclass(given.annotation):
        return [given.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
    return [*map(_parameter, leaves(given.annotation))]


def _parameter(leaf: Leaf) -> inspect.Parameter:
    """The function parameter from which typer makes an option or argument."""
    required = leaf.required and not leaf.about.argument
    kind, default = leaf.type, inspect.Parameter.empty if required else leaf.default
    if leaf.required and not required:
        kind, default = kind | None, None
    if leaf.about.reads is not None:
        kind, default = (str if leaf.required else str | None), default if default != () else None
    elif get_origin(kind) is tuple:
        kind, default = list[get_args(kind)[0]], default or None  # type: ignore[misc]
        kind = kind if leaf.required else kind | None
    said = leaf.about
    default = _Untyped(default) if said.implies else default
    words = as_options(sentence(said)) + (f"  [default: {said.unset}]" if said.unset else "")
    settings: dict[str, Any] = {"help": words, "show_default": not said.unset}
    if said.choices or said.suggested is not None:
        settings["autocompletion"] = _completing(said)
    if said.reads is not None:
        settings["parser"] = functools.partial(_read, leaf)
    if said.positional:
        declared: Any = typer.Argument(metavar=said.positional, **settings)
    else:
        if said.reads is not None or (said.unit and _number(kind)):
            settings["metavar"] = f"<{said.unit.split(' ')[-1]}>" if said.unit else "<text>"
        declared = typer.Option(*_spellings(leaf), **settings)
    return inspect.Parameter(
        leaf.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared]
    )


def _completing(said: About) -> Callable[[str], list[str]]:
    """A function that completes a partly typed value in a shell."""

    def completed(incomplete: str) -> list[str]:
        names = said.choices or (said.suggested() if said.suggested is not None else ())
        return [name for name in names if name.lower().startswith(incomplete.lower())]

    return completed


def _spellings(leaf: Leaf) -> list[str]:
    """Spellings of an option: `-o`, `--output`; for a switch also the one that switches it off."""
    return (
        [each.strip() for each in leaf.about.spelled.split(",")]
        if leaf.about.spelled
        else [f"--{leaf.option}"]
    )


def _number(kind: Any) -> bool:
    inner = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    return any(each in (int, float) for each in inner)


def _read(leaf: Leaf, text: Any) -> Any:
    """The value of a typed text; defaults, which typer passes unchanged, are returned as they are."""
    if not isinstance(text, str) or isinstance(text, _Untyped):
        return text
    try:
        assert leaf.about.reads is not None
        return leaf.about.reads(text)
    except ValueError as error:
        raise BadInputError(f"`{leaf.name}={text}`: {error}") from None
    except BadInputError as error:
        if f"`{leaf.name}=" in str(error):
            raise
        raise BadInputError(f"`{leaf.name}=`: {error}") from None


def _value(leaf: Leaf, given: Any) -> Any:
    """The field's value from what typer parsed: lists become tuples."""
    if isinstance(given, _Untyped):
        return leaf.default
    if get_origin(leaf.type) is tuple:
        return tuple(given or ())
    return given
