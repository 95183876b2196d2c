"""The base of all questions, and what is derived from their fields: files, command lines, JSON Schemas."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.fields import Leaf, built, leaves, require_valid, sentence

if TYPE_CHECKING:
    from tangram_sim.studies.documents import AnswerDocument

Answer = TypeVar("Answer", bound="AnswerDocument")

# Verb -> module and class of its question.
QUESTIONS: Mapping[str, str] = {
    "compare": "tangram_sim.questions.compare:CompareQuestion",
    "estimate": "tangram_sim.questions.estimate:EstimateQuestion",
    "explain": "tangram_sim.questions.explain:ExplainQuestion",
    "export": "tangram_sim.questions.export:ExportQuestion",
    "goodput": "tangram_sim.questions.goodput:GoodputQuestion",
    "islands": "tangram_sim.questions.islands:IslandsQuestion",
    "plan": "tangram_sim.questions.plan:PlanQuestion",
    "purchase": "tangram_sim.questions.purchase:PurchaseQuestion",
    "rl compare": "tangram_sim.questions.rl:RlCompareQuestion",
    "rl estimate": "tangram_sim.questions.rl:RlEstimateQuestion",
    "rl export": "tangram_sim.questions.rl:RlExportQuestion",
    "rl plan": "tangram_sim.questions.rl:RlPlanQuestion",
    "rl purchase": "tangram_sim.questions.rl:RlPurchaseQuestion",
    "rl simulate": "tangram_sim.questions.rl:RlSimulateQuestion",
    "rl what-if": "tangram_sim.questions.rl:RlWhatIfQuestion",
    "serve compare": "tangram_sim.questions.serve_plan:ServeCompareQuestion",
    "serve estimate": "tangram_sim.questions.serve_estimate:ServeEstimateQuestion",
    "serve export": "tangram_sim.questions.serve_export:ServeExportQuestion",
    "serve plan": "tangram_sim.questions.serve_plan:ServePlanQuestion",
    "serve purchase": "tangram_sim.questions.serve_what_if:ServePurchaseQuestion",
    "serve replan": "tangram_sim.questions.serve_replan:ServeReplanQuestion",
    "serve simulate": "tangram_sim.questions.serve_simulate:ServeSimulateQuestion",
    "serve tune": "tangram_sim.questions.serve_tune:ServeTuneQuestion",
    "serve what-if": "tangram_sim.questions.serve_what_if:ServeWhatIfQuestion",
    "serve workload describe": "tangram_sim.questions.serve_workload:ServeWorkloadQuestion",
    "simulate": "tangram_sim.questions.simulate:SimulateQuestion",
    "stragglers": "tangram_sim.questions.stragglers:StragglersQuestion",
    "train replay": "tangram_sim.questions.replay:ReplayTraceQuestion",
    "what-if": "tangram_sim.questions.what_if:WhatIfQuestion",
}


class Question(ABC):
    """Base of the questions: a frozen dataclass for one verb, whose fields carry their own descriptions.

    Raises BadInputError or UnknownNameError for fields outside their bounds or choices.
    """

    __slots__ = ()
    VERB: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Raise BadInputError or UnknownNameError for fields outside their bounds or choices."""
        require_valid(self)

    @abstractmethod
    def answer(self) -> Any:
        """The answer: a document, or a result that holds one; the document contains this question."""

    @property
    def stated(self) -> list[Leaf]:
        """The fields that differ from their defaults."""
        return [leaf for leaf in leaves(type(self)) if leaf.of(self) != leaf.default]

    @property
    def given(self) -> dict[str, Any]:
        """The question as JSON for a file: `verb` and the fields that differ from their defaults."""
        said = {leaf.name: _plain(leaf.of(self)) for leaf in self.stated}
        return {"verb": self.VERB, **said}

    @property
    def words(self) -> list[str]:
        """The command line for this question, without `tangram`."""
        arguments: list[str] = []
        options: list[str] = []
        for leaf in self.stated:
            value = leaf.of(self)
            if leaf.about.positional:
                arguments += [str(each) for each in (value if isinstance(value, tuple) else (value,))]
            elif isinstance(value, bool):
                options.append(f"--{leaf.option if value else _negation(leaf)}")
            elif isinstance(value, tuple) and leaf.about.reads is None:
                options += [f"--{leaf.option}={each}" for each in value]
            else:
                typed = ",".join(map(str, value)) if isinstance(value, tuple) else value
                options.append(f"--{leaf.option}={typed}")
        return [*self.VERB.split(" "), *arguments, *options]

    def with_answer(self, document: Answer) -> Answer:
        """The document with this question in it."""
        return document.with_fields(question=self.given)


def _negation(leaf: Leaf) -> str:
    """The option that switches a field off: `whole-islands` of `--sub-islands/--whole-islands`."""
    _, _, second = leaf.about.spelled.partition("/")
    return second.lstrip("-") or f"no-{leaf.option}"


def _plain(value: Any) -> Any:
    """A field's value in JSON types."""
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def question_type(verb: str) -> type[Question]:
    """The question of a verb. Raises UnknownNameError for a verb that has none."""
    if verb not in QUESTIONS:
        raise unknown_name("question", verb, QUESTIONS)
    module, _, name = QUESTIONS[verb].partition(":")
    found: type[Question] = getattr(import_module(module), name)
    return found


def question_of(said: Mapping[str, Any], where: str = "question") -> Question:
    """The question in a file or answer: `verb`, and fields by name, values as people write them.

    Raises BadInputError or UnknownNameError, naming `where`, for unknown, missing or invalid fields.
    """
    verb = said.get("verb")
    if not isinstance(verb, str):
        raise BadInputError(f"{where}: say which verb asks, e.g. verb: goodput")
    of = question_type(verb)
    known = {leaf.name: leaf for leaf in leaves(of)}
    values: dict[str, Any] = {}
    for key, value in said.items():
        name = str(key).replace("-", "_")
        if name == "verb":
            continue
        if name not in known:
            raise unknown_name(f"field of {verb} in {where}", str(key), known)
        values[name] = _value(known[name], value, where)
    for name in [name for name in values if name in known]:
        values = {**known[name].about.implies, **values}
    missing = [leaf.name for leaf in known.values() if leaf.required and leaf.name not in values]
    if missing:
        raise BadInputError(f"{where}: {verb} needs {', '.join(missing)}")
    return built(of, values)


def _value(leaf: Leaf, said: Any, where: str) -> Any:
    """A field's value, read from a file. Raises BadInputError."""
    from pydantic import TypeAdapter, ValidationError

    try:
        if isinstance(said, str) and leaf.about.reads is not None:
            return leaf.about.reads(said)
        return TypeAdapter(leaf.type).validate_json(json.dumps(said), strict=True)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]["msg"]
    except (TypeError, ValueError) as error:
        fault = str(error)
    raise BadInputError(f"{where}: {leaf.name}: {fault}")


def read_question(path: Path) -> Question:
    """Read the question in a YAML or JSON file: a question file, or an answer, which contains its question.

    Raises BadInputError for any other file.
    """
    from tangram_sim.datafiles import read_json_or_yaml

    said = read_json_or_yaml(path)
    if isinstance(said, dict) and isinstance(said.get("question"), dict):
        said = said["question"]
    if not isinstance(said, dict):
        raise BadInputError(f"{path}: a question is a mapping, e.g. verb: goodput")
    return question_of(said, str(path))


def read_questions(path: Path, folder: Path) -> list[Question]:
    """Read the questions in a file: the one of `read_question`, or a list under `questions`.

    An entry may contain files that its fields name, as text by name under `files`; these are written below
    `folder`. Raises BadInputError for invalid questions, and for file names that lead outside.
    """
    from tangram_sim.datafiles import read_json_or_yaml, write_whole

    said = read_json_or_yaml(path)
    if not (isinstance(said, dict) and isinstance(said.get("questions"), list)):
        return [read_question(path)]
    if not said["questions"]:
        raise BadInputError(f"{path}: `questions` is empty: nothing is asked")
    found = list[Question]()
    for number, entry in enumerate(said["questions"], start=1):
        where = f"{path}, question {number}"
        if not isinstance(entry, dict) or not isinstance(entry.get("files", {}), dict):
            raise BadInputError(f"{where}: a question is a mapping, e.g. verb: goodput")
        fields = {key: value for key, value in entry.items() if key != "files"}
        placed = dict[str, str]()
        for name, text in entry.get("files", {}).items():
            plain = isinstance(name, str) and Path(name).name == name not in ("", "..") and name.isprintable()
            if not plain or not isinstance(text, str):
                raise BadInputError(f"{where}: files: give texts by plain names like cluster.yaml")
            place = folder / str(number) / "own-model" / name  # a config.json is a model of its folder's name
            write_whole(place, text)
            placed[name] = str(place)
        found.append(question_of({key: _placed(value, placed) for key, value in fields.items()}, where))
    return found


def _placed(value: Any, placed: Mapping[str, str]) -> Any:
    """A field's value with file names replaced by their paths in `placed`."""
    if isinstance(value, list):
        return [_placed(each, placed) for each in value]
    return placed.get(value, value) if isinstance(value, str) else value


def question_text(question: Question) -> str:
    """A question as a YAML file."""
    import yaml

    return yaml.safe_dump(question.given, sort_keys=False, allow_unicode=True)


def question_schema(of: type[Question]) -> dict[str, Any]:
    """The JSON Schema of a verb's question file."""
    from pydantic import TypeAdapter

    properties: dict[str, Any] = {"verb": {"const": of.VERB}}
    for leaf in leaves(of):
        said = leaf.about
        found = {"description": sentence(said), **TypeAdapter(leaf.type).json_schema()}
        if leaf.about.reads is not None and found.get("type") != "string":
            found = {"description": found.pop("description"), "anyOf": [{"type": "string"}, found]}
        bounds = {
            "minimum": said.least,
            "exclusiveMinimum": said.above,
            "maximum": said.most,
            "exclusiveMaximum": said.below,
            "enum": list(said.choices) or None,
        }
        found |= {key: bound for key, bound in bounds.items() if bound is not None}
        if not leaf.required and leaf.default != math.inf:
            found["default"] = _plain(leaf.default)
        properties[leaf.name] = found
    return {
        "title": f"{of.VERB}: question",
        "description": (of.__doc__ or "").split("\n\nFields:")[0].strip(),
        "type": "object",
        "properties": properties,
        "required": ["verb", *(leaf.name for leaf in leaves(of) if leaf.required)],
        "additionalProperties": False,
    }
