"""The question of `tangram train replay`: policies for nodes that leave and return, on one history."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.fields import SEARCH, HasDocument, about, described, option, part
from tangram_sim.questions.question import Question
from tangram_sim.questions.shared_fields import Hardware, models
from tangram_sim.training.job import Job
from tangram_sim.written import name_list

if TYPE_CHECKING:
    from tangram_sim.availability import Availability
    from tangram_sim.reliability.spot.engine import Outcome
    from tangram_sim.studies.replaying import ReplayDocument, ReplayQuestion

_HISTORY: dict[str, Any] = {"group": "History"}
_CHANGES: dict[str, Any] = {"group": "Failures and checkpoints"}
_POLICIES: dict[str, Any] = {"group": "Policies"}
_SECONDS: dict[str, Any] = {"unit": "seconds", "least": 0, "example": "60"}


@dataclass(frozen=True, slots=True)
class Replayed(HasDocument):
    """A replay: its document, what each policy did when, and the history that was replayed."""

    document: "ReplayDocument"
    outcomes: "Mapping[str, Outcome]"
    history: "Availability"


@described
@dataclass(frozen=True, slots=True)
class ReplayTraceQuestion(Question):
    """Replay a history of nodes coming and going under policies: the best first, with an upper bound."""

    VERB: ClassVar[str] = "train replay"

    model: str = field(
        metadata=about(
            "A name in the table of speeds; without a table a model as for `plan`.",
            positional="MODEL",
            suggested=models,
        )
    )
    trace: Path = field(
        metadata=about("CSV: time_s,event,node[,kind][,value], or time_s[,kind],count.", positional="TRACE")
    )
    cluster: str | None = option(
        None,
        "Whose groups are the kinds of the trace: our planner then gives the speeds.",
        positional="[CLUSTER]",
    )
    policy: tuple[str, ...] = option(
        ("all",), "Policies, separated by commas, or all.", reads=name_list, basic=True, **_POLICIES
    )
    speeds: Path | None = option(
        None,
        "CSV of samples/s by pipelines,stages, or by nodes.",
        label="Speeds of layouts",
        spelled="--speeds,--table",
        basic=True,
        **_HISTORY,
    )
    costs: Path | None = option(
        None, "CSV of seconds of changing over.", label="Seconds of changing over", basic=True, **_CHANGES
    )
    trace_name: str = option("", "Which trace of a file that holds several.", unset="the first", **_HISTORY)
    from_s: float = option(0.0, "Start at this time of the trace.", **_HISTORY, **_SECONDS)
    until_s: float | None = option(None, "End there.", unset="the trace's end", **_HISTORY, **_SECONDS)
    join: str = option(
        "at-once",
        "When nodes that come are taken: at-once, next-loss or SECONDS.",
        basic=True,
        **_POLICIES,
    )
    boot_s: float = option(
        0.0,
        "Seconds until a node that came can be used.",
        label="Seconds until a node can be used",
        basic=True,
        **_HISTORY,
        **_SECONDS,
    )
    notice_s: float = option(
        0.0,
        "Seconds that losses are announced ahead.",
        label="Seconds that losses are announced",
        basic=True,
        **_HISTORY,
        **_SECONDS,
    )
    restart_s: float | None = option(
        None,
        "Seconds of a restart, state and checkpoint apart.",
        label="Seconds of a restart, replayed",
        unset="as known",
        **_CHANGES,
        **_SECONDS,
    )
    checkpoint_s: float | None = option(
        None,
        "Seconds that a checkpoint blocks.",
        label="Seconds a checkpoint blocks, replayed",
        unset="as known",
        **_CHANGES,
        **_SECONDS,
    )
    checkpoint_every: int | None = option(
        None,
        "Steps between checkpoints.",
        label="Steps between checkpoints, replayed",
        unset="as known",
        least=1,
        **_CHANGES,
    )
    migrate_s: float | None = option(
        None, "Seconds of going over from peers' state.", unset="as known", **_CHANGES, **_SECONDS
    )
    reconfigure_s: float = option(0.0, "Seconds of recombining pipelines.", **_CHANGES, **_SECONDS)
    detect_s: float = option(0.0, "Seconds until a loss is noticed.", **_CHANGES, **_SECONDS)
    forecast: str = option(
        "recent", "What hold and replan know: recent, or perfect.", choices=("recent", "perfect"), **_POLICIES
    )
    look_ahead: int = option(
        12,
        "Intervals of a minute that hold looks ahead.",
        unit="intervals",
        least=1,
        example="12",
        **_POLICIES,
    )
    price: tuple[str, ...] = option(
        (), "USD per node-hour: 0.92, or KIND=0.92; price events win.", **_HISTORY
    )
    job: Job = field(default=Job(), metadata=part("global_batch", "seq", "dtype", "optimizer", "stack"))
    kinds: str = option(
        "mixed", "mixed, ignored (all as the slowest), or the one kind to use.", basic=True, **_POLICIES
    )
    search: str = option(
        "auto",
        "auto, uniform (best uniform layout of a fleet), or full.",
        choices=("auto", "uniform", "full"),
        group=SEARCH,
    )
    load_bytes_per_s: float = option(
        1.25e9,
        "What a node reads from a checkpoint (with a cluster).",
        unit="bytes/s",
        above=0,
        **_CHANGES,
    )
    batch: str = option(
        "keep",
        "keep the global batch, or scale it with the fleet (a pipeline's stays).",
        choices=("keep", "scale"),
        **_POLICIES,
    )
    hardware: Hardware = field(default=Hardware(), metadata=part())

    def __post_init__(self) -> None:
        """Raise BadInputError or UnknownNameError for fields that are invalid or contradict each other."""
        Question.__post_init__(self)
        if (self.speeds is None) == (self.cluster is None):
            raise BadInputError(
                "give one of `speeds=FILE`, a table of samples/s, and CLUSTER, on which our planner plans"
            )
        moved = (self.costs, self.restart_s, self.migrate_s)
        if self.cluster is not None and any(each is not None for each in moved):
            raise BadInputError(
                "`costs=`, `restart_s=` and `migrate_s=` go with `speeds=`; with a cluster what moves is "
                "computed, see `load_bytes_per_s=` and `checkpoint_s=`"
            )
        if self.until_s is not None and self.from_s >= self.until_s > 0:
            raise BadInputError(
                f"`from_s={self.from_s:g}` is not before the end, {self.until_s:g} s; give an earlier time"
            )

    def answer(self) -> Replayed:
        """Results of the policies on the history, the best first.

        Raises BadInputError or UnknownNameError for contradictory fields, InfeasibleError where nothing runs
        on any fleet of the history.
        """
        from tangram_sim.studies.replaying import policy_names, replay_document

        names, history = policy_names(self.policy), self._history()
        if self.cluster is not None:
            several = len(history.kinds) > 1 and self.kinds == "mixed"
            others = (*history.kinds, "ignored") if several else ()
            document, found = replay_document(
                self._planned(history, self.kinds),
                names,
                {_kinds_words(other): self._planned(history, other) for other in others},
            )
        else:
            document, found = replay_document(self._measured(history), names)
        return Replayed(self.with_answer(document), found, history)

    def _history(self) -> "Availability":
        """The part of the trace to replay. Raises BadInputError."""
        from tangram_sim.reliability.spot.tracefile import read_trace

        history = read_trace(self.trace, self.trace_name, self.until_s or 0.0)
        stop = self.until_s or history.until_s
        if self.from_s >= stop:
            raise BadInputError(
                f"`from_s={self.from_s:g}` is not before the end, {stop:g} s; give an earlier time"
            )
        if self.from_s or self.until_s:
            history = history.window(self.from_s, stop)
        return history.delayed(self.boot_s)

    def _planned(self, history: "Availability", kinds: str) -> "ReplayQuestion":
        """The replay with speeds from planning on the cluster, with nodes treated as `kinds` says."""
        from tangram_sim.hwdb import load_cluster, load_model
        from tangram_sim.studies.planned_speeds import planned_question

        database = self.hardware.load()
        planned = planned_question(
            load_model(self.model),
            load_cluster(self.cluster or "", database),
            self.job,
            database,
            history,
            search=self.search,
            kinds=kinds,
            load_bytes_per_s=self.load_bytes_per_s,
            checkpoint_s=self.checkpoint_s,
            every_steps=self.checkpoint_every,
            detect_s=self.detect_s,
            scale_batch=self.batch == "scale",
        )
        return self._settled(planned, history)

    def _measured(self, history: "Availability") -> "ReplayQuestion":
        """The replay with speeds from a table."""
        from tangram_sim.reliability.spot.speeds import read_speeds
        from tangram_sim.reliability.spot.transitions import FixedTransitions, read_transitions
        from tangram_sim.studies.replaying import ReplayQuestion, with_scaled_batch

        samples = 0.0
        if self.costs is not None:
            transitions, samples = read_transitions(self.costs, self.model, self.restart_s)
        else:
            transitions = FixedTransitions(
                restart_s=self.restart_s or 0.0,
                migrate_s=self.migrate_s,
                reconfigure_s=self.reconfigure_s,
                detect_s=self.detect_s,
                block_s=self.checkpoint_s or 0.0,
                every_steps=self.checkpoint_every or 0,
                keeps_all=not self.checkpoint_every,
            )
        table = read_speeds(self.speeds or Path(), self.model, samples)
        speeds = with_scaled_batch(table, history) if self.batch == "scale" else table
        return self._settled(ReplayQuestion(history, speeds, transitions), history)

    def _settled(self, asked: "ReplayQuestion", history: "Availability") -> "ReplayQuestion":
        """The replay with notice, join rule, forecast and prices applied."""
        from tangram_sim.studies.replaying import with_notice

        return replace(
            asked,
            transitions=with_notice(asked.transitions, self.notice_s),
            join=_join(self.join),
            forecast=self.forecast,
            intervals=self.look_ahead,
            prices=_prices(self.price, history.kinds),
        )


def _kinds_words(kinds: str) -> str:
    """Words for how a policy treats GPU kinds: `kinds ignored`, or `KINDS only`."""
    return "kinds ignored" if kinds == "ignored" else f"{kinds} only"


def _join(text: str) -> str | float:
    """When waiting nodes are taken in: `at-once`, `next-loss`, or a time in seconds. Raises BadInputError."""
    if text in ("at-once", "next-loss"):
        return text
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise BadInputError(f"`join={text}`: give at-once, next-loss or seconds, e.g. 600")
    return seconds


def _prices(given: tuple[str, ...], kinds: tuple[str, ...]) -> dict[str, float] | None:
    """USD per node-hour by kind; None where nothing is stated. Raises BadInputError, UnknownNameError."""
    if not given:
        return None
    found: dict[str, float] = {}
    for item in given:
        kind, equals, number = item.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise BadInputError(f"`price={item}`: give USD per node-hour, e.g. 0.92 or V100=0.92")
        if equals and kind not in kinds:
            raise unknown_name("kind of node in the trace", kind, [name for name in kinds if name])
        found |= {kind: value} if equals else dict.fromkeys(kinds, value)
    return found
