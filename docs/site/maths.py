"""Equations of `math` blocks as MathML, which browsers draw without a script."""

from typing import Any

from latex2mathml.converter import convert


def fence(source: str, language: str, css_class: str, options: Any, md: Any, **_: Any) -> str:  # noqa: ARG001
    """HTML of one `math` block; a blank line parts equations. The signature is pymdownx.superfences'."""
    equations = (part.replace("\n", " ") for part in source.strip().split("\n\n"))
    return "".join(
        f'<div class="{css_class}">{convert(equation, display="block")}</div>' for equation in equations
    )
