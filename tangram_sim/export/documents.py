"""What `export` answers."""

from pydantic import Field

from tangram_sim.studies.documents import AnswerDocument


class ExportDocument(AnswerDocument):
    """`export --json`, `serve export --json`, `rl export --json`."""

    to: str = Field(description="format or framework")
    files: dict[str, str] = Field(description="text by name")
    notes: list[str]
