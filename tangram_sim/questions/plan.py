"""The question of `tangram plan`: the fastest way to train a model on a cluster."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.fields import SEARCH, described, option, part
from tangram_sim.planners.search_options import POLICIES, SearchOptions
from tangram_sim.questions.question import Question
from tangram_sim.questions.shared_fields import (
    FINE_TUNING,
    OnTrainingCluster,
    Run,
    dask_option,
    schedules,
    slow_option,
)
from tangram_sim.training.job import Job
from tangram_sim.written import name_list, share

if TYPE_CHECKING:
    from tangram_sim.clusters import Cluster
    from tangram_sim.placement.tolerances import Tolerances
    from tangram_sim.planners.api import Progress
    from tangram_sim.planners.deadline import Deadline
    from tangram_sim.studies.results import Result

# Sequences per rank that arXiv:2606.16907 uses: 1 for dense models, 4 for Mixtral and Qwen3; without ZeRO.
PRESETS = {"tangram-paper": 1, "tangram-paper-moe": 4}
DEGREES = {
    **{name: name for name in ("tp", "dp", "cp", "ep", "pp")},
    **{"zero": "zero_stage", "zero_stage": "zero_stage"},
}
_DIGITS = 9  # of a degree; more would be no number of GPUs
_JOB = part(
    *("global_batch", "seq", "dtype", "optimizer", "schedule", "stack", *FINE_TUNING),
    schedule={
        "help": "1f1b, gpipe, zb-h1, interleaved, zb-v, dualpipe-v or an added one; auto: the first five.",
        "suggested": lambda: (*schedules(), "auto"),
        "implies": {"interleave": False},
    },
)
_TOLERANCE: dict[str, Any] = {"least": 0, "unset": "chosen by the search", "group": SEARCH, "on_page": False}
# What is said of the layouts of stages, and of who can launch them.
_OF_LAYOUTS = ("fix", "microbatch_per_rank", "recompute", "order", "exclude", "preset", "frameworks")
# What planners other than tangram know, too.
_OF_ALL = (
    "time_limit_s",
    "jobs",
    "memory_margin",
    "hwdb",
    "stack",
    "planner",
    "objective",
    "dask",
    "tokens",
    "finish_within",
    *("power_cap", "site_power", "pue", "carbon", "usd_per_kwh"),
    "model",
    "cluster",
    "global_batch",
    "seq",
    "dtype",
    "optimizer",
    "schedule",
    "interleave",
    "slow",
    "without",
)


def _frameworks(text: str) -> tuple[str, ...]:
    """Framework names, from a list separated by commas; `any` means all. Raises UnknownNameError."""
    from tangram_sim.studies.launch_choice import frameworks_named

    found = [name for given in name_list(text) for name in frameworks_named(given)]
    return tuple(dict.fromkeys(found))


@described
@dataclass(frozen=True, slots=True)
class PlanQuestion(OnTrainingCluster):
    """Find the fastest plan for MODEL on CLUSTER and predict what it achieves."""

    VERB: ClassVar[str] = "plan"

    job: Job = field(default=Job(), metadata=_JOB)
    search: SearchOptions = field(default=SearchOptions(), metadata=part(frameworks={"reads": _frameworks}))
    planner: str = option(
        "tangram",
        "Who plans the cluster: tangram, or a peer that `compare` names.",
        group=SEARCH,
        on_page=False,
    )
    objective: str = option(
        "time",
        "What to minimise: time, energy or cost; or weights, e.g. time=2,energy=1.",
        suggested=lambda: ("time", "energy", "cost"),
        group="Energy",
    )
    fix: tuple[str, ...] = option(
        (),
        "Fix degrees of every stage: tp=4, dp, cp, ep, pp (inner), zero.",
        label="Fixed degrees",
        group=SEARCH,
        basic=True,
    )
    preset: str | None = option(
        None,
        "tangram-paper or tangram-paper-moe: microbatch per rank 1 or 4, and no ZeRO.",
        choices=tuple(PRESETS),
        group=SEARCH,
        on_page=False,
    )
    no_prune: tuple[str, ...] = option(
        (),
        "Policies off: redundancy, imbalance, infeasibility, incompatibility; or all.",
        reads=name_list,
        group=SEARCH,
        on_page=False,
    )
    gap: float | None = option(
        None,
        "Raise the effort, from quick on, until the plan is proven within this share of the best one, e.g. "
        "5%.",
        label="Proven within",
        unit="a share",
        reads=share,
        unset="one effort only",
        group=SEARCH,
    )
    compute_tolerance: float | None = option(
        None, "Largest relative difference in compute throughput within one island.", **_TOLERANCE
    )
    memory_tolerance: float | None = option(
        None, "Largest relative difference in memory within one island.", **_TOLERANCE
    )
    link_tolerance: float | None = option(
        None, "Largest relative difference in link bandwidth within one island.", **_TOLERANCE
    )
    slow: tuple[str, ...] = slow_option()
    without: tuple[str, ...] = option(
        (),
        "Plan without these nodes, e.g. n3,n7, and say what must move for it.",
        label="Without these nodes",
        reads=name_list,
        group=SEARCH,
    )
    losses: float | None = option(
        None,
        "Rank by liveput: the speed after so many losses of nodes in an hour.",
        unit="per hour",
        group=SEARCH,
        on_page=False,
    )
    run: Run = field(default=Run(), metadata=part())
    dask: str | None = dask_option()

    def __post_init__(self) -> None:
        """Raise BadInputError or UnknownNameError for fields that are invalid or contradict each other."""
        Question.__post_init__(self)
        if self.planner != "tangram":
            self._refuse(f"`planner={self.planner}`", "plan with tangram", self._of_tangram_alone)
        if self.gap is not None and any(leaf.name == "effort" for leaf in self.stated):
            raise BadInputError("`gap=` goes through the efforts from quick on; drop `effort=`")
        if sum(bool(given) for given in (self.slow, self.without, self.losses is not None)) > 1:
            raise BadInputError(
                "`slow=`, `without=` and `losses=`: nodes are slow, gone, or may go; give one of them"
            )
        if self.losses is not None:
            who = "`losses=`, which compares uniform layouts over all GPUs,"
            self._refuse(who, "plan without it", _OF_LAYOUTS)

    @property
    def _of_tangram_alone(self) -> list[str]:
        """Names of the stated fields that planners other than tangram do not support."""
        return [leaf.name for leaf in self.stated if leaf.name not in _OF_ALL]

    def _refuse(self, who: str, instead: str, names: Collection[str]) -> None:
        """Raise BadInputError if any of these fields is stated, since `who` does not support it."""
        given = [leaf for leaf in self.stated if leaf.name in names]
        if given:
            off = {leaf.name: "False" if leaf.of(self) is False else "" for leaf in given}
            words = ", ".join(f"`{name}={value}`" for name, value in off.items())
            raise BadInputError(f"{who} does not know {words}; drop them, or {instead}")

    @property
    def options(self) -> SearchOptions:
        """The search options for the planner. Raises BadInputError or UnknownNameError for bad values."""
        limits = self.search.constraints
        fixes, per_rank = _preset(self.preset, list(self.fix), limits.microbatch_per_rank)
        constraints = replace(limits, fixed=fixed_degrees(fixes), microbatch_per_rank=per_rank)
        policies, tolerances = _policies(self.no_prune), self._tolerances
        return replace(self.search, constraints=constraints, policies=policies, tolerances=tolerances)

    @property
    def _tolerances(self) -> "Tolerances | None":
        """How far GPUs of one island may differ; None, if nothing is given, leaves this to the search."""
        from tangram_sim.placement.tolerances import Tolerances

        given = {
            "compute": self.compute_tolerance,
            "memory": self.memory_tolerance,
            "intra": self.link_tolerance,
        }
        stated = {name: value for name, value in given.items() if value is not None}
        return Tolerances(**stated) if stated else None

    def answer(
        self,
        *,
        candidates: bool = False,
        progress: "Progress | None" = None,
        deadline: "Deadline | None" = None,
    ) -> "Result":
        """The fastest plan; with `candidates` also every partial plan considered.

        Raises InfeasibleError where nothing fits, BadInputError for contradictory fields.
        """
        from tangram_sim.planners.deadline import Deadline
        from tangram_sim.planners.search_memory import SearchMemory
        from tangram_sim.studies.dask_workers import processes
        from tangram_sim.studies.training_run import with_run

        wanted = self.run.wanted
        database = self.hardware.load()
        timed = deadline or Deadline(self.search.time_limit_s)
        # Fleets of one question (whole and hurt, at several clocks) have most parts of islands in common.
        with processes(self.dask, self.search.jobs) as jobs, SearchMemory().in_use():
            options = replace(self.options, every_candidate=candidates, jobs=jobs)
            found = self._searched(options, database, progress, timed)
        found = with_run(found, database, wanted, self.run.power.terms(database, self.objective))
        return replace(found, document=self.with_answer(found.document))

    def _searched(
        self, options: SearchOptions, database: Any, progress: "Progress | None", deadline: "Deadline"
    ) -> "Result":
        """The plan for the cluster as stated: unchanged, slow, without nodes, or under node losses."""
        from tangram_sim.hwdb import load_cluster, load_model
        from tangram_sim.studies import tried
        from tangram_sim.studies.comparison import plan_with

        cluster = load_cluster(self.cluster, database)
        if self.losses is not None:
            from tangram_sim.studies.liveput_plans import lasting

            options = lasting(options)

        def by(planner: str, where: "Cluster") -> "Result":
            return plan_with(
                planner,
                load_model(self.model),
                where,
                self.trained,
                hwdb=database,
                deadline=deadline,
                memory_margin=self.search.memory_margin,
            )

        def searched(where: "Cluster", wishes: SearchOptions) -> "Result":
            if self.planner != "tangram":
                return by(self.planner, where)
            return tried.plan(
                load_model(self.model),
                where,
                self.trained,
                wishes=wishes,
                hwdb=database,
                progress=progress,
                deadline=deadline,
            )

        def free(where: "Cluster") -> "Result":
            if self.gap is None:
                return searched(where, options)
            from tangram_sim.studies.within_gap import plan_within_gap

            return plan_within_gap(partial(searched, where), options, self.gap, deadline)

        terms = self.run.power.terms(database, self.objective, self.run.wanted)
        if terms is not None:
            from tangram_sim.studies.power_choice import plan_under_power, redrawn
            from tangram_sim.studies.training_power import clocks_under

            clocks_under(cluster, terms.caps_w, database)  # refuses what the cluster has not before planning

        def under_power(plain: Callable[["Cluster"], "Result"], where: "Cluster") -> "Result":
            if terms is None:
                return plain(where)
            return plan_under_power(where, terms.on(where), database, plain)

        def drawn(found: "Result") -> "Result":
            return found if terms is None else redrawn(found, cluster, terms, database)

        planned = partial(under_power, free)
        if self.slow:
            from tangram_sim.studies.slow_files import read_every_slow
            from tangram_sim.studies.slow_plans import plan_slow

            slow = read_every_slow(list(self.slow), cluster)
            # Malleus cuts nodes between slow and healthy ranks; it is asked where nothing says it must not.
            asked = self.planner == "tangram" and not self._of_tangram_alone
            around = partial(under_power, partial(by, "malleus")) if asked else None
            return drawn(plan_slow(cluster, slow, database, planned, around))
        if self.without:
            from tangram_sim.studies.losses import plan_without

            return plan_without(cluster, self.without, database, planned)
        if self.losses is not None:
            from tangram_sim.studies.liveput_plans import plan_for_losses

            model = load_model(self.model)
            return plan_for_losses(
                cluster,
                self.losses,
                model,
                job=self.trained,
                hwdb=database,
                planned=planned,
                deadline=deadline,
                shown=options.top,
                redrawn=drawn,
            )
        return planned(cluster)


def fixed_degrees(given: Collection[str]) -> tuple[tuple[str, int], ...]:
    """The degrees that `fix=` sets, by name. Raises BadInputError for contradictions and malformed items."""
    fixed: dict[str, int] = {}
    for item in (item for text in given for item in name_list(text)):
        name, _, value = (word.strip() for word in item.partition("="))
        if name not in DEGREES or not (value.isascii() and value.isdigit()):
            raise BadInputError(
                f"`fixed=` {item}: give NAME=NUMBER with a name out of {', '.join(DEGREES)}, e.g. tp=4"
            )
        key, number = DEGREES[name], int(value[:_DIGITS])
        if key == "zero_stage" and number > 3:
            raise BadInputError(f"`fixed=` {item}: ZeRO stages are 0 to 3")
        if key != "zero_stage" and number < 1:
            raise BadInputError(f"`fixed=` {item}: a degree is 1 or more")
        if fixed.get(key, number) != number:
            raise BadInputError(f"`fixed=` gives {name} two values, {fixed[key]} and {number}; keep one")
        fixed[key] = number
    return tuple(sorted(fixed.items()))


def _preset(preset: str | None, fixes: list[str], per_rank: int) -> tuple[list[str], int]:
    """(fixed degrees, sequences per rank) with the settings of a preset added.

    Raises BadInputError if the user's own settings contradict the preset.
    """
    if preset is None:
        return fixes, per_rank
    size = PRESETS[preset]
    if per_rank not in (0, size):
        raise BadInputError(f"`preset={preset}` means `microbatch_per_rank={size}`; drop one of the two")
    zero = [item for item in fixes if "zero" in item]
    if any(not item.endswith("=0") for item in zero):
        raise BadInputError(f"`preset={preset}` means `fixed=` zero=0, not {zero[0]}; drop one of the two")
    return fixes if zero else [*fixes, "zero=0"], size


def _policies(left_out: Collection[str]) -> tuple[str, ...]:
    """All pruning policies but those left out. Raises UnknownNameError for unknown names."""
    for name in left_out:
        if name not in (*POLICIES, "all"):
            raise unknown_name("pruning policy", name, [*POLICIES, "all"])
    return tuple(policy for policy in POLICIES if policy not in left_out and "all" not in left_out)
