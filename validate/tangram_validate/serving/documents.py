"""What `serve validate` and `serve calibrate` answer, as documents with schemas."""

from pydantic import Field

from tangram_sim.studies.documents import Document


class RefusalCountDocument(Document):
    """Rows that could not be predicted, by reason."""

    reason: str
    count: int


class GroupScoreDocument(Document):
    """Errors of one group of rows, as fractions of what was measured."""

    rows: float
    median_ape: float = Field(description="median of absolute errors")
    p90_ape: float = Field(description="their 90th percentile")
    bias: float = Field(description="median of signed errors")
    interval_coverage: float | None = Field(
        None, description="share of rows inside the 90 % interval; the null model has none"
    )


class MetricScoreDocument(GroupScoreDocument):
    """Errors of one metric, whole and by group."""

    by_gpu: dict[str, GroupScoreDocument] = Field({})
    by_engine: dict[str, GroupScoreDocument] = Field({})
    by_model: dict[str, GroupScoreDocument] = Field({})
    by_load: dict[str, GroupScoreDocument] = Field({})


class FarthestRowDocument(Document):
    """One of the rows farthest off."""

    table: str = Field("", description="the file, where several were read")
    line: int
    metric: str
    gpu: str
    engine: str
    version: str
    model: str
    precision: str
    tp: int
    load: str
    measured: float
    predicted: float


class PlacementWayDocument(Document):
    """Tokens a second, measured and predicted, of one way of placing layers; its parts added up."""

    method: str
    measured: float
    predicted: float


class PlacementOrderDocument(Document):
    """Ways of placing a model's layers under one load, and Kendall's tau of their order."""

    model: str
    load: str
    ways: list[PlacementWayDocument]
    tau: float | None = Field(description="1: the order is right; none where there is one way only")


class ServeValidateDocument(Document):
    """`serve validate --json`."""

    schema_version: int
    rows: int
    rows_used: int
    left_out: str | None = Field(description="gpu, model or source, where each was predicted from the others")
    refused: list[RefusalCountDocument]
    metrics: dict[str, MetricScoreDocument]
    null: dict[str, MetricScoreDocument] = Field(description="the same of a regression without physics")
    doubtful: dict[str, MetricScoreDocument] = Field(
        {}, description="the same as `metrics`, of rows that may not say what was run; not among those"
    )
    doubts: list[RefusalCountDocument] = Field([], description="why rows are doubtful, and how many")
    dropped: list[RefusalCountDocument] = Field(
        [], description="values that are not compared though their rows are, by reason"
    )
    worst: list[FarthestRowDocument]
    orders: list[PlacementOrderDocument] = Field([], description="of runs of layers placed on unlike nodes")


class RefusedRowDocument(Document):
    """One row of a benchmark that could not be used."""

    row: int
    reason: str


class OwnErrorDocument(GroupScoreDocument):
    """Errors of one metric on the user's own runs, before or after calibrating to them."""

    interval: float = Field(description="how far the 90 % interval reaches above the prediction, as a share")


class CalibratedRowDocument(Document):
    """One calibrated parameter of an engine, a row of the overlay file that was written."""

    engine: str
    parameter: str
    value: float
    sigma: float
    n: int = Field(description="runs it rests on")


class ServeCalibrateDocument(Document):
    """`serve calibrate --json`."""

    schema_version: int
    runs: int
    runs_used: int
    refused: list[RefusedRowDocument]
    before: dict[str, OwnErrorDocument]
    after: dict[str, OwnErrorDocument]
    rows: list[CalibratedRowDocument]
