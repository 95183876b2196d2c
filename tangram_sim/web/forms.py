"""Forms of the page, derived from the fields of questions: labels, choices and checks."""

from typing import Any, Literal, get_args

from tangram_sim.fields import Leaf, leaves, sentence
from tangram_sim.questions.question import question_type
from tangram_sim.web.documents import FieldChoice


def form_fields(verb: str) -> list[FieldChoice]:
    """The form fields of a verb: the options of its question that may be set on the page."""
    return [_field(leaf) for leaf in page_leaves(verb) if not leaf.about.positional]


def page_leaves(verb: str) -> list[Leaf]:
    """The fields of a verb's question that may be set on the page."""
    return [leaf for leaf in leaves(question_type(verb)) if leaf.about.on_page]


def _field(leaf: Leaf) -> FieldChoice:
    said = leaf.about
    names = said.choices or (said.suggested() if said.suggested is not None else ())
    plain = isinstance(leaf.default, str | float | int) and not said.unset
    default: Any = leaf.default if plain else None
    return FieldChoice(
        name=leaf.option,
        kind=_kind(leaf),
        off=next((name.lstrip("-") for name in leaf.spellings[1:] if leaf.type is bool), ""),
        label=said.label or sentence(said).rstrip("."),
        help=sentence(said),
        group=said.group,
        basic=said.basic,
        default=default,
        choices=list(names),
        least=said.above if said.least is None else said.least,
        most=said.below if said.most is None else said.most,
        whole=_is_of(leaf.type, int),
        required=leaf.required,
        unset=said.unset,
    )


def _kind(leaf: Leaf) -> Literal["figure", "switch", "choice", "text"]:
    if leaf.about.choices:
        return "choice"
    if _is_of(leaf.type, bool):
        return "switch"
    if leaf.about.reads is not None and _is_of(leaf.type, float):
        return "text"  # as people write it: 2T, 14d, 250k, 10%
    return "figure" if _is_of(leaf.type, int) or _is_of(leaf.type, float) else "text"


def _is_of(kind: Any, wanted: type) -> bool:
    return kind is wanted or wanted in get_args(kind)
