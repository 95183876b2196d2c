"""The question of `tangram explain`: where a step goes, or what state is lost with nodes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tangram_sim.errors import BadInputError
from tangram_sim.fields import described, option, part
from tangram_sim.questions.question import Question
from tangram_sim.questions.shared_fields import Hardware, plan_argument
from tangram_sim.written import name_list

if TYPE_CHECKING:
    from tangram_sim.reliability.checkpointing import CheckpointTier
    from tangram_sim.reliability.state import StateMap
    from tangram_sim.studies.explain import ExplainDocument
    from tangram_sim.studies.losses import LostDocument

_LOST: dict[str, Any] = {"group": "Lost nodes", "basic": True}


@described
@dataclass(frozen=True, slots=True)
class ExplainQuestion(Question):
    """Show where the step of a plan goes (critical path by cause), and why other layouts were not chosen."""

    VERB: ClassVar[str] = "explain"

    plan: Path = plan_argument()
    lost: tuple[str, ...] = option(
        (),
        "Nodes that are gone, e.g. n3 or n3,n7: say which state is lost with them.",
        reads=name_list,
        **_LOST,
    )
    partner_copies: bool = option(
        False, "With `lost=`: the memory of the next node holds a copy of each node's state.", **_LOST
    )
    checkpoint: Path | None = option(
        None,
        "With `lost=`: a YAML file of checkpoint tiers; say which of them restores the state.",
        on_page=False,
        **_LOST,
    )
    hardware: Hardware = field(default=Hardware(), metadata=part())

    def __post_init__(self) -> None:
        """Raise BadInputError for `partner_copies` or `checkpoint` without lost nodes."""
        Question.__post_init__(self)
        if not self.lost and (self.partner_copies or self.checkpoint is not None):
            raise BadInputError(
                "`partner_copies=` and `checkpoint=` go with `lost=`: name the nodes that are gone"
            )

    def answer(self) -> "ExplainDocument | LostDocument":
        """The step by cause; with `lost` the state that is lost with these nodes, and what restores it.

        Raises BadInputError for files of another schema, UnknownNameError for nodes that the plan lacks.
        """
        from tangram_sim.studies.explain import explain, explain_document
        from tangram_sim.studies.planfile import plan_from_document, read_plan

        database, document = self.hardware.load(), read_plan(self.plan)
        made = plan_from_document(document, database, str(self.plan))
        if self.lost:
            from tangram_sim.studies.losses import lost_document

            tiers = self._tiers(document.step_s)
            return self.with_answer(lost_document(made, database, self.lost, self.partner_copies, tiers))
        return self.with_answer(explain_document(explain(made, database), document))

    def _tiers(self, step_s: float) -> Any:
        """A function from the state map of a plan with this step to the checkpoint tiers of the file."""
        from tangram_sim.reliability.checkpointing import load_checkpointing

        def tiers(state: "StateMap") -> "Sequence[CheckpointTier]":
            if self.checkpoint is None:
                return ()
            nodes, held = len(state.nodes), state.held_bytes().values()
            share = state.total_bytes / nodes
            return load_checkpointing(self.checkpoint, nodes, share, max(held), step_s).tiers

        return tiers
