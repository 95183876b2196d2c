"""What `rl validate` and `rl calibrate` answer, as documents with schemas."""

from pydantic import Field

from tangram_sim.studies.documents import SCHEMA_VERSION, Document


class RlScoreDocument(Document):
    """Errors of a group of runs, as fractions of what was measured."""

    median_ape: float | None = Field(None, description="median of absolute errors")
    p90_ape: float | None = Field(None, description="their 90th percentile")
    bias: float | None = Field(None, description="median of signed errors")
    interval_coverage: float | None = Field(None, description="share of steps inside their 90 % interval")
    n: int = Field(description="runs, or measured phases, behind the figures")


class RlUnpredictedDocument(Document):
    """A row without a prediction, and why."""

    run_id: str
    source: str
    reason: str


class RlPredictionDocument(Document):
    """A predicted run: its step, the 90 % interval, the floor's figure, its phases; seconds."""

    run_id: str
    source: str
    scored: bool = Field(
        description="whether the step counts: set-up stated, no reason against it in the row"
    )
    measured_s: float | None
    step_s: float
    low_s: float
    high_s: float
    floor_s: float = Field(description="the closed form of three constants")
    phases_s: dict[str, float]
    assumed: list[str] = Field([], description="cells that were blank, and what was taken for them")


class RlRatioDocument(Document):
    """Two runs on the same GPUs that differ in mode or split: first step over the second's."""

    run_id: str
    other: str
    source: str
    measured: float
    predicted: float


class RlRatioScoreDocument(Document):
    """How ratios between modes and splits on the same GPUs are met."""

    n: int = Field(description="pairs of runs")
    right_order: float | None = Field(
        None, description="share of pairs whose faster run is predicted as such; within 3 % is a tie"
    )
    within_fifth: float | None = Field(None, description="share of pairs whose ratio is met within 20 %")
    median_ape: float | None = Field(None, description="median absolute error of the ratio")


class RlSyncDocument(Document):
    """A measured weight sync beside its prediction and bound; seconds."""

    row_id: str
    source: str
    method: str
    low_s: float
    high_s: float
    seconds: float
    bound_s: float
    within_factor: bool = Field(description="predicted within a factor of 1.5")


class RlSyncScoreDocument(Document):
    """How measured weight syncs are met."""

    n: int
    within_factor: float | None = Field(None, description="share predicted within a factor of 1.5")
    bound_below: float | None = Field(None, description="share whose bound is below what was measured")
    syncs: list[RlSyncDocument] = Field([])
    unpredicted: list[RlUnpredictedDocument] = Field([])


class RlValidateDocument(Document):
    """Output of `tangram rl validate --json`."""

    schema_version: str = SCHEMA_VERSION
    rows: int
    leave_out: str = Field("", description="source or model: overheads fitted to the others of the table")
    overall: RlScoreDocument
    by_source: dict[str, RlScoreDocument]
    by_phase: dict[str, RlScoreDocument]
    floor: RlScoreDocument = Field(description="of a closed form with three fitted constants, same folds")
    orders: RlRatioScoreDocument = Field(description="of modes and splits on the same GPUs")
    ratios: list[RlRatioDocument] = Field([], description="pairs behind `orders`")
    syncs: RlSyncScoreDocument | None = Field(
        None, description="measured weight syncs, where a table is given"
    )
    unpredicted: list[RlUnpredictedDocument]
    predictions: list[RlPredictionDocument] = Field([])


class RlOverheadDocument(Document):
    """One fitted parameter, as `hwdb/post_training/overheads.csv` has it."""

    parameter: str
    value: float


class RlLogScoreDocument(Document):
    """Errors of one phase, or of the step, over the steps of a log that were not fitted."""

    median_ape: float
    p90_ape: float
    bias: float
    n: int


class RlCalibrateDocument(Document):
    """Output of `tangram rl calibrate --json`."""

    schema_version: str = SCHEMA_VERSION
    run_id: str
    steps: int
    fitted_steps: int
    factors: dict[str, float] = Field({}, description="measured over priced, by phase: the scale of each")
    padded: dict[str, bool] = Field({}, description="phases whose seconds do not follow the lengths")
    later: dict[str, RlLogScoreDocument] = Field({}, description="errors on the steps after the fitted ones")
    repeated: RlLogScoreDocument | None = Field(None, description="the fitted steps' median, repeated")
    lengths: dict[str, float] = Field({}, description="mean, cap and share at the cap of the fitted steps")
    rows: list[RlOverheadDocument] = Field([], description="overlay rows for --hwdb")
