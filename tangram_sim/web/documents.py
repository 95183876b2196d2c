"""The requests that the page sends and the answers it gets; answers contain the verbs' own JSON unchanged."""

from typing import Any, Literal

from pydantic import Field

from tangram_sim.studies.documents import Document

MOST_FILES = 16
MOST_WORDS = 64  # values of one option


class VerbRequest(Document):
    """A request to run one verb. Its files have plain names and can be read by this run only."""

    verb: str = Field(max_length=40, description="like `plan` or `serve estimate`")
    arguments: list[str] = Field([], max_length=8, description="names, or files of this request")
    options: dict[str, str | int | float | bool | list[str]] = Field({}, max_length=64)
    files: dict[str, str] = Field({}, max_length=MOST_FILES, description="text by plain file name")
    keep: bool = Field(False, description="whether the answer goes into the history")


class VerbAnswer(Document):
    """The outcome of running one verb."""

    command: str = Field(description="the command line that does the same")
    code: int = Field(description="its exit code")
    document: Any = Field(None, description="what `--json` printed")
    error: str = Field("", description="why there is no document")
    files: dict[str, str] = Field({}, description="what it wrote, text by name")
    key: str = Field("", description="its name in the history, if it may be kept there")


class KeptAnswer(Document):
    """An answer in the history, with what was asked."""

    kept_at: str = Field(max_length=40, description="ISO 8601, UTC")
    request: VerbRequest
    answer: VerbAnswer


class KeptLine(Document):
    """One entry in the list of kept answers."""

    key: str = Field(description="of its question, which names it in addresses")
    kept_at: str
    verb: str
    command: str
    figures: dict[str, float] = Field(description="of its document, by key")


class HistoryDocument(Document):
    """The kept answers, and where they are."""

    folder: str
    why_off: str = Field(description="why no answers are kept; empty: they are")
    entries: list[KeptLine]
    damaged: list[str] = Field(description="keys of files that are not what was written: skipped")


class GpuChoice(Document):
    """A GPU kind to build nodes of."""

    name: str
    vendor: str
    memory_gb: float
    dtypes: list[str]
    link: str = Field(description="usual link between the GPUs of a node; empty: none known")


class NodeChoice(Document):
    """A node type of the hardware tables."""

    name: str
    gpu: str
    gpus: int
    nic_gbps: float = Field(description="0: the table does not state it")
    usd_per_hour: float = Field(description="0: the table does not state it")


class ClusterChoice(Document):
    """A shipped cluster."""

    name: str
    gpus: str = Field(description="like `32 x A100-SXM4-80GB + 32 x H100-SXM5-80GB`")


class ModelChoice(Document):
    """A shipped model."""

    name: str
    parameters: int
    max_seq: int


class FieldChoice(Document):
    """One field of a question, as a form shows it and checks it."""

    name: str = Field(description="the option, without dashes")
    kind: Literal["figure", "switch", "choice", "text"]
    off: str = Field(description="of a switch that is on by default the option that switches it off")
    label: str
    help: str
    group: str
    basic: bool = Field(description="whether most people need it")
    default: str | float | bool | None
    choices: list[str] = Field(description="of a choice all, of a text some; empty: any")
    least: float | None = Field(description="bounds of a figure")
    most: float | None
    whole: bool = Field(description="whether a figure is a whole number")
    required: bool
    unset: str = Field(description="what a field means that is left empty")


class ChoicesDocument(Document):
    """Everything that the forms offer for selection."""

    version: str
    models: list[ModelChoice]
    clusters: list[ClusterChoice]
    gpus: list[GpuChoice]
    nodes: list[NodeChoice]
    links: list[str] = Field(description="links inside a node")
    questions: dict[str, list[FieldChoice]] = Field(description="fields of the form of each verb")
    formats: list[str] = Field(description="of `export --to`")
