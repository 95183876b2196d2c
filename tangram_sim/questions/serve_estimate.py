"""The question of `tangram serve estimate`: one replica under a steady load."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from tangram_sim.fields import SOFTWARE, described, option, part
from tangram_sim.questions.question import Question
from tangram_sim.questions.shared_fields import Hardware
from tangram_sim.studies.replica_question import ReplicaQuestion

if TYPE_CHECKING:
    from tangram_sim.studies.serving_answer import ServeEstimateDocument

_ENGINE: dict[str, Any] = {"unset": "the engine's own", "group": SOFTWARE}


@described
@dataclass(frozen=True, slots=True)
class ServeEstimateQuestion(Question):
    """Estimate one replica of MODEL under a steady load: TPOT, TTFT, tokens/s, KV memory, what limits it."""

    VERB: ClassVar[str] = "serve estimate"

    replica: ReplicaQuestion = field(metadata=part())
    rate: float | None = option(
        None,
        "Requests per second that arrive, instead of `concurrency=`.",
        label="or requests a second",
        unit="requests/s",
        above=0,
        example="5",
        unset="a closed loop",
        basic=True,
        group="Requests",
    )
    max_num_seqs: int | None = option(None, "Requests that run at once.", least=1, **_ENGINE)
    max_num_batched_tokens: int | None = option(None, "Tokens of one iteration.", least=1, **_ENGINE)
    memory_fraction: float | None = option(
        None, "Share of memory the engine takes.", unit="a share", above=0, most=1, **_ENGINE
    )
    no_async_scheduling: bool = option(
        False, "The host prepares an iteration after the last one.", group=SOFTWARE
    )
    price: float | None = option(
        None,
        "USD of one GPU for an hour, instead of dated price rows.",
        label="USD of a GPU an hour",
        unit="USD/h",
        above=0,
        example="2.5",
        unset="the dearest known",
        group="Money",
    )
    hardware: Hardware = field(default=Hardware(), metadata=part())

    def answer(self) -> "ServeEstimateDocument":
        """Latencies, throughput, memory, limiting resource. Raises TangramError if there is no answer."""
        from tangram_sim.studies.serving_estimate import estimate_service

        asked = replace(
            self.replica,
            rate=self.rate or 0.0,
            settings=self._settings,
            usd_per_gpu_hour=self.price or 0.0,
        )
        return self.with_answer(estimate_service(asked, self.hardware.load()))

    @property
    def _settings(self) -> dict[str, Any]:
        """Engine options that are set, by their names in `EngineDefaults`."""
        said = {
            "max_sequences": self.max_num_seqs,
            "max_batched_tokens": self.max_num_batched_tokens,
            "memory_fraction": self.memory_fraction,
            "async_scheduling": False if self.no_async_scheduling else None,
        }
        return {name: value for name, value in said.items() if value is not None}
