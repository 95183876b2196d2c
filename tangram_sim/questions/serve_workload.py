"""The question of `tangram serve workload describe`: statistics of the requests in a trace."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tangram_sim.fields import about, described, part
from tangram_sim.questions.question import Question
from tangram_sim.questions.requests import TraceRequests

if TYPE_CHECKING:
    from tangram_sim.studies.serving_workload import RatesDocument, WorkloadDocument


@described
@dataclass(frozen=True, slots=True)
class ServeWorkloadQuestion(Question):
    """Show rate, burstiness, lengths and shared prefixes of the requests in FILE.csv."""

    VERB: ClassVar[str] = "serve workload describe"

    file: Path = field(
        metadata=about(
            "arrival_s, input_tokens, output_tokens[, prefix_id, ...], or rates over time: start_s, "
            "rate_rps[, cv].",
            positional="FILE.csv",
        )
    )
    requests: TraceRequests = field(default=TraceRequests(), metadata=part())

    def answer(self) -> "WorkloadDocument | RatesDocument":
        """Statistics of requests, or of rates over time. Raises BadInputError for other files."""
        from tangram_sim.serving.rates_file import is_rates_file
        from tangram_sim.studies.serving_workload import describe_rates, describe_workload

        if is_rates_file(self.file):
            return self.with_answer(describe_rates(self.requests.rates(self.file)))
        return self.with_answer(describe_workload(self.requests.described(self.file)))
