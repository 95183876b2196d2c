"""Measured serving runs as nouns: what was run, under which load, and what was measured."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tangram_sim.models import Model
from tangram_sim.precision import Precision

if TYPE_CHECKING:
    from tangram_validate.serving.placed_runs import PlacedRun

# Loads that have a closed form.
CLOSED, OPEN, OFFLINE, STATIC, FIRST, START = "closed", "open", "offline", "static", "first", "start"
APART = "apart"  # closed, with prompts on workers of their own
BURST = "burst"  # so many requests at once, or at a rate: played
DECODE = "decode"  # all requests decode, no prompt is under way
LOG = "log"  # every request of the run is known: it is played
SHAREGPT = "ShareGPT"  # conversations whose lengths vLLM's benchmark takes over
PLACED = "placed layers"  # on unlike nodes: played hop by hop
LIMITED = "limited"  # as many requests at once as a limit of the seconds a token allows
ENERGY = "energy"  # closed, seats always taken, and the watts of all GPUs were measured
# Of ENERGY: watts of all GPUs, and joules per output token at the speed predicted and at the speed measured.
WATTS, JOULES, JOULES_AT_SPEED = "watts", "joules_per_token", "joules_per_token_at_measured_speed"
METRICS = (
    *("tpot", "ttft", "e2e", "output_tok_s", "kv_tokens"),
    *("tpot_p99", "ttft_p99", "e2e_p99"),
    *(WATTS, JOULES, JOULES_AT_SPEED),
)


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request of a log."""

    arrival_s: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class PromptPool:
    """Workers that take prompts only (APART), and the degrees of each."""

    workers: int
    tp: int
    attention_dp: int
    ep: int


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
    load: str  # one of the words above: CLOSED, OPEN, ...
    clients: float  # in flight (CLOSED, STATIC, APART, DECODE), or sent in all (BURST)
    rate: float  # requests per second (OPEN, BURST; of a burst 0: all at once)
    isl: float
    osl: float
    cached: float
    source: str
    measured: tuple[tuple[str, float], ...]  # (metric, value), of METRICS
    max_sequences: int = 0  # 0: the engine's default
    max_batched_tokens: int = 0
    memory_fraction: float = 0.0
    recv_interval: int = 0
    async_scheduling: bool = False  # switched on by the benchmark; False: the engine's default
    requests: tuple[LoggedRequest, ...] = ()  # LOG
    placed: "PlacedRun | None" = None  # PLACED
    workers: int = 1  # that decode and share the clients (APART)
    prompts: PromptPool | None = None  # APART
    doubt: str = ""  # why the row may not say what was run; scored apart
    dropped: tuple[str, ...] = ()  # why values of the row are not compared
    table: str = ""  # the file, where several are read
    dataset: str = ""  # SHAREGPT: lengths differ as there, `isl` and `osl` are means (BURST, OPEN)
    sent: float = 0.0  # requests in all (OPEN); 0.0: not stated, as of a load without end
    tpot_limit_s: float = 0.0  # LIMITED; 0.0: none
    power_cap_w: float = 0.0  # of each GPU; 0.0: the board's own limit
    assumed: tuple[str, ...] = ()  # what the row does not say and was read with its usual meaning

    def value(self, metric: str) -> float:
        """A measured value, 0.0 where there is none."""
        return dict(self.measured).get(metric, 0.0)

    @property
    def setup(self) -> tuple[object, ...]:
        """What runs on the same deployment have in common."""
        return (
            *(self.gpu, self.model.name, self.precision, self.engine, self.version, self.tp, self.pp),
            *(self.attention_dp, self.ep, self.max_sequences, self.max_batched_tokens),
            *(self.memory_fraction, self.recv_interval, self.async_scheduling, self.workers, self.prompts),
            self.power_cap_w,
        )


@dataclass(frozen=True, slots=True)
class RefusedRun:
    """A row that cannot be predicted, and why."""

    line: int
    reason: str
    table: str = ""


def publisher(run: ServedRun) -> str:
    """Who published a run: of `owner/repository path` the owner, of a collection what it collected."""
    first = run.source.partition(" ")[0]
    return first.partition("/")[0] if "/" in first else run.source
