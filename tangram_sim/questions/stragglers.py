"""The question of `tangram stragglers`: the cost of slow ranks in a measured run."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tangram_sim.errors import BadInputError
from tangram_sim.fields import about, described, option
from tangram_sim.questions.question import Question
from tangram_sim.written import whole_numbers

if TYPE_CHECKING:
    from tangram_sim.reliability.stragglers.remedies import Setup
    from tangram_sim.studies.stragglers import Diagnosis

_RUN: dict[str, Any] = {"group": "Measured run", "basic": True}


@described
@dataclass(frozen=True, slots=True)
class StragglersQuestion(Question):
    """Replay a measured step trace with and without its slow ranks: cost, which they are, what helps."""

    VERB: ClassVar[str] = "stragglers"

    trace: tuple[Path, ...] = field(
        metadata=about(
            "A table of operations (CSV, also gzipped), a timeline of `tangram simulate --trace`, or "
            "torch.profiler's files, one per rank (or their folder).",
            positional="TRACE...",
        )
    )
    pp: int = option(
        1,
        "Stages of the pipeline, of torch.profiler's files; others say it.",
        label="Stages, of torch.profiler's files",
        unit="the number of stages",
        least=1,
        **_RUN,
    )
    plan: Path | None = option(
        None,
        "The run's plan file: layers per stage, tp and what moving columns costs come from it.",
        label="Plan file",
        **_RUN,
    )
    layers: tuple[int, ...] = option(
        (),
        "Layers of each stage, e.g. 9,9,9,9: prices moving them.",
        label="Layers of each stage",
        reads=whole_numbers,
        **_RUN,
    )
    tp: int = option(1, "Tensor-parallel ranks of one worker.", label="tp", least=1, **_RUN)
    gpus_per_node: int = option(
        0, "Exchange tensor-parallel ranks inside nodes only; 0: anywhere.", least=0, **_RUN
    )
    max_pruned: float = option(
        0.0,
        "Share of columns that ZERO-resizing may prune (accuracy is not simulated); 0: none.",
        unit="a share",
        least=0,
        most=1,
        **_RUN,
    )
    sequences: Path | None = option(
        None, "Lengths of the sequences, one line per microbatch of a step.", label="File of lengths", **_RUN
    )
    restart_s: float | None = option(
        None,
        "Seconds from stopping a run to its next step.",
        label="Seconds of a restart",
        unit="seconds",
        least=0,
        example="300",
        **_RUN,
    )

    def __post_init__(self) -> None:
        """Raise BadInputError for invalid fields."""
        Question.__post_init__(self)
        if 0 in self.layers:
            raise BadInputError(
                f"`layers={','.join(map(str, self.layers))}`: give whole numbers, 1 or more, e.g. 9,9,9,9"
            )

    def answer(self) -> "Diagnosis":
        """The cost of slow ranks, as a document with the analysis behind it.

        Raises BadInputError for traces that cannot be replayed, or a setup that does not match them.
        """
        from tangram_sim.studies.stragglers import diagnose

        found = diagnose(self.trace, self.pp, self._setup)
        return replace(found, document=self.with_answer(found.document))

    @property
    def _setup(self) -> "Setup":
        """What is known of the measured run. Raises BadInputError."""
        from tangram_sim.reliability.stragglers.remedies import RESTART_S, Setup
        from tangram_sim.studies.slow_files import read_sequences
        from tangram_sim.studies.stragglers import setup_of_plan

        found = Setup(tp=self.tp) if self.plan is None else setup_of_plan(self.plan)
        if self.gpus_per_node % found.tp:
            raise BadInputError(
                f"`gpus_per_node={self.gpus_per_node}`: give a multiple of the {found.tp} ranks of a "
                "worker, or 0"
            )
        return replace(
            found,
            layers=self.layers or found.layers,
            restart_s=RESTART_S if self.restart_s is None else self.restart_s,
            max_pruned=self.max_pruned,
            sequences=read_sequences(self.sequences) if self.sequences else (),
            gpus_per_node=self.gpus_per_node,
        )
