"""The question of `tangram what-if`: a cluster planned and simulated with nodes added or removed."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tangram_sim.errors import BadInputError
from tangram_sim.fields import HasDocument, described, option
from tangram_sim.questions.buying import (
    Buying,
    SearchListener,
    Unheard,
    before_sensitivity,
    unused_prices,
)
from tangram_sim.questions.question import Question
from tangram_sim.questions.served_fleets import ServedAnswer, ServedSetting
from tangram_sim.questions.shared_fields import nodes

if TYPE_CHECKING:
    from tangram_sim.planners.deadline import Deadline
    from tangram_sim.purchasing.documents import WhatIfDocument
    from tangram_sim.purchasing.sensitivity import Sensitivity
    from tangram_sim.purchasing.whatif import WhatIf
    from tangram_sim.studies.sweep import Sweep

_NODES: dict[str, Any] = {"group": "Additions", "basic": True}


@dataclass(frozen=True)
class WhatIfAnswer(HasDocument):
    """Candidates compared with the existing fleet: the document, the study behind it, and its sweep."""

    document: "WhatIfDocument"
    fleet: str  # name of what stands
    study: "WhatIf"
    sensitivity: "Sensitivity | None"
    unused: tuple[str, ...]
    sweep: "Sweep"


@described
@dataclass(frozen=True, slots=True)
class WhatIfQuestion(Buying):
    """Plan MODEL on CLUSTER with each --add: throughput, time, money, GPUs in use.

    With --serve candidates are ranked by what they serve; with --share they serve by day and train by night.
    """

    VERB: ClassVar[str] = "what-if"

    add: tuple[str, ...] = option(
        (),
        "A candidate: NODE:COUNT, a hwdb row, GPUxN or a node file; A:2+B:1 for several kinds.",
        label="Candidates to add",
        suggested=nodes,
        **_NODES,
    )
    remove: tuple[str, ...] = option(
        (),
        "Retire GROUP or GROUP:COUNT nodes in every candidate.",
        label="Nodes to retire",
        **_NODES,
    )

    def __post_init__(self) -> None:
        """Raise BadInputError if there is nothing to compare, or fields contradict each other."""
        Question.__post_init__(self)
        if not (self.add or self.remove or self.served.given):
            raise BadInputError(
                "nothing to compare: give `add=NODE:COUNT` or `remove=GROUP`, e.g. `add=p5.48xlarge:2`"
            )
        if self.served.given and self.money.sensitivity:
            raise BadInputError("`sensitivity=True` is of training alone; leave it out with `serve=`")

    def answer(
        self,
        *,
        listener: SearchListener | None = None,
        deadline: "Deadline | None" = None,
        sensitive: bool = False,
    ) -> WhatIfAnswer | ServedAnswer:
        """Every candidate planned, simulated and billed; `sensitive`: vary assumptions in any case.

        Raises BadInputError, UnknownNameError; InfeasibleError when no candidate has a plan.
        """
        from tangram_sim.hwdb import load_model
        from tangram_sim.planners.deadline import Deadline
        from tangram_sim.purchasing.fleets import parse_purchases, parse_retired, standing_fleet
        from tangram_sim.purchasing.whatif import candidates_of, what_if

        hears, timed = listener or Unheard(), deadline or Deadline(self.look.limit_s)
        hwdb = self.hardware.load()
        prices, terms = self.under_power(self.money.found_prices(hwdb), self.money.terms, hwdb)
        standing = standing_fleet(self.cluster, hwdb)
        bought = [parse_purchases(text, hwdb) for text in self.add]
        retired = parse_retired(self.remove, standing)
        named = {member.name for member in standing.members} | {each.name for many in bought for each in many}
        unused = unused_prices(prices, named | set(hwdb.node_names()))
        if self.served.given:
            setting = ServedSetting(self, prices, terms, hwdb, timed, unused)
            return setting.what_if(candidates_of(standing, bought, retired), hears)
        asked = self.money.sensitivity or sensitive
        sweep = self.look.sweep(hears)
        study = what_if(
            load_model(self.model),
            standing,
            bought,
            retired=retired,
            job=self.trained,
            tokens=self.money.tokens,
            prices=prices,
            terms=terms,
            wishes=self.look.options,
            hwdb=hwdb,
            sweep=sweep,
            deadline=before_sensitivity(timed) if asked else timed,
        )
        from tangram_sim.purchasing.documents import what_if_document
        from tangram_sim.purchasing.sensitivity import sensitivity

        moved = sensitivity(study, hwdb, timed) if asked else None
        document = self.with_answer(what_if_document(study, moved, unused))
        return WhatIfAnswer(document, standing.cluster.name, study, moved, unused, sweep)
