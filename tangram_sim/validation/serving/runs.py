"""Measured serving runs as nouns: what was run, under which load, and what was measured."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tangram_sim.models import Model
from tangram_sim.precision import Precision

if TYPE_CHECKING:
    from tangram_sim.validation.serving.placed_runs import PlacedRun

# Loads that have a closed form.
CLOSED, OPEN, OFFLINE, STATIC, FIRST, START = "closed", "open", "offline", "static", "first", "start"
LOG = "log"  # every request of the run is known: it is played
PLACED = "placed layers"  # on unlike nodes: played hop by hop
METRICS = (
    *("tpot", "ttft", "e2e", "output_tok_s", "kv_tokens"),
    *("tpot_p99", "ttft_p99", "e2e_p99"),
)


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request of a log."""

    arrival_s: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class ServedRun:
    """One measured row. Measured values are 0.0 where the row has none; times in seconds."""

    line: int
    gpu: str  # canonical name
    model: Model
    precision: Precision
    engine: str
    version: str
    tp: int
    pp: int
    attention_dp: int
    ep: int
    load: str  # one of CLOSED, OPEN, OFFLINE, STATIC, FIRST, START, LOG, PLACED
    clients: float  # in flight (CLOSED, STATIC)
    rate: float  # requests per second (OPEN)
    isl: float
    osl: float
    cached: float
    source: str
    measured: tuple[tuple[str, float], ...]  # (metric, value), of METRICS
    max_sequences: int = 0  # 0: the engine's default
    max_batched_tokens: int = 0
    memory_fraction: float = 0.0
    requests: tuple[LoggedRequest, ...] = ()  # LOG
    placed: "PlacedRun | None" = None  # PLACED
    table: str = ""  # the file, where several are read

    def value(self, metric: str) -> float:
        """A measured value, 0.0 where there is none."""
        return dict(self.measured).get(metric, 0.0)

    @property
    def setup(self) -> tuple[object, ...]:
        """What runs on the same deployment have in common."""
        return (
            *(self.gpu, self.model.name, self.precision, self.engine, self.version, self.tp, self.pp),
            *(self.attention_dp, self.ep, self.max_sequences, self.max_batched_tokens),
            self.memory_fraction,
        )


@dataclass(frozen=True, slots=True)
class RefusedRun:
    """A row that cannot be predicted, and why."""

    line: int
    reason: str
    table: str = ""
