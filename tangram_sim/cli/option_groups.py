"""Options that belong together, declared once as a dataclass and taken whole by several verbs.

A verb marked `@grouped` may take a parameter whose type is a dataclass: each of its fields becomes an option
of the verb, with the field's `Annotated` type and default, and the verb is handed the filled dataclass.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a verb: each parameter that is an option group is replaced by the options in it.

    Raises TypeError, at import and not when the verb runs, if two options have one name.
    """
    given = inspect.signature(command).parameters.values()
    groups: dict[str, Any] = {
        one.name: one.annotation for one in given if dataclasses.is_dataclass(one.annotation)
    }
    parameters: list[inspect.Parameter] = []
    for one in given:
        if one.name in groups:
            parameters += _fields(groups[one.name])
        else:
            parameters.append(one.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    names = [one.name for one in parameters]
    if len(set(names)) < len(names):
        raise TypeError(f"{command.__name__}: an option is declared twice among {', '.join(names)}")

    @functools.wraps(command)
    def run(**options: Any) -> None:
        for name, kind in groups.items():
            options[name] = kind(**{one.name: options.pop(one.name) for one in dataclasses.fields(kind)})
        command(**options)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _fields(kind: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if one.default is dataclasses.MISSING else one.default,
            annotation=hints[one.name],
        )
        for one in dataclasses.fields(kind)
    ]
