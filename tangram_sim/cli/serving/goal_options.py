"""Options of verbs that plan a service for models: requests, offers, and what the plan is for."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.cli.serving import workload_options as asked
from tangram_sim.cli.serving.scenario_option import ScenarioOption, scenarios_of
from tangram_sim.errors import BadInputError, unknown_name

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.serving.workload import Workload
    from tangram_sim.studies.serving_plan import ServePlanDocument
    from tangram_sim.studies.serving_question import ServiceGoal


@dataclass(frozen=True, slots=True)
class GoalOptions:
    """Options on the aim of a serving plan: objective, latency limits, budget, engine, precision."""

    budget: Annotated[float | None, typer.Option("--budget", help="Of a model: USD an hour at most.")] = None
    slo: asked.SloOption = None
    objective: Annotated[
        str, typer.Option("--objective", help="Of a model: makespan, cost (of the rate) or goodput.")
    ] = "makespan"
    engine: Annotated[str, typer.Option("--engine", help="Of a model: vllm, sglang or trtllm.")] = "vllm"
    precision: Annotated[str, typer.Option("--precision", help="Of a model: bf16, fp8, int4, ...")] = "bf16"
    utilisation: Annotated[
        float, typer.Option("--utilisation", help="Of a model at least cost: how busy replicas may be.")
    ] = 0.8
    scenario: ScenarioOption = None
    link: Annotated[
        float | None,
        typer.Option(
            "--link-gb-per-s",
            help="Of a model at a rate: replicas may also prefill or decode alone, with KV caches sent "
            "between them at so many GB/s in all.",
        ),
    ] = None

    def goal(self, hwdb: "Hwdb") -> "ServiceGoal":
        """The options as a `ServiceGoal`. Raises BadInputError or UnknownNameError for bad values."""
        from tangram_sim.studies.serving_question import OBJECTIVES, ServiceGoal

        if self.objective not in OBJECTIVES:
            raise unknown_name("--objective", self.objective, OBJECTIVES)
        if self.budget is not None and not 0 < self.budget < float("inf"):
            raise BadInputError(f"--budget {self.budget}: USD an hour, above 0, are wanted")
        if not 0 < self.utilisation <= 1:
            raise BadInputError(f"--utilisation {self.utilisation}: above 0 and at most 1 is wanted")
        if self.link is not None and not 0 < self.link < float("inf"):
            raise BadInputError(f"--link-gb-per-s {self.link}: GB/s above 0 are wanted")
        return ServiceGoal(
            self.objective,
            self.budget,
            asked.slo_of(self.slo),
            self.engine,
            self.precision,
            self.utilisation,
            tuple(one.on(hwdb) for one in scenarios_of(self.scenario)),
            self.link,
        )


@dataclass(frozen=True, slots=True)
class PlannedRequests:
    """The requests that a service is planned for."""

    workload: Annotated[
        str | None,
        typer.Option(
            "--workload",
            help="Of a model: a trace (CSV), or a mix like 2455:510:0.3,496:18:0.7; of several models with "
            "names, like llama3-8b=496:18:0.7,llama3-70b=2455:510:0.3.",
        ),
    ] = None
    rate: asked.Rate = None
    requests: asked.Requests = 1000
    where: asked.Where = None
    seed: asked.Seed = 0

    def made(self, objective: str) -> "Workload":
        """The requests, read from a file or generated; for `makespan` their arrival times do not matter.

        Raises BadInputError if no requests, or no rate where one is needed, are given.
        """
        from tangram_sim.serving.synthetic import drawn_note

        if self.workload is None:
            raise BadInputError(
                "no requests: give --workload TRACE.csv, or a mix like 2455:510:0.3,496:18:0.7"
            )
        if self.workload.lower().endswith(".csv"):
            source = asked.RequestOptions(
                Path(self.workload), self.where, self.rate, requests=self.requests, seed=self.seed
            )
            return source.made()
        if self.rate is None and objective != "makespan":
            raise BadInputError(f"--objective {objective} is of a rate: give --rate R, requests a second")
        made = asked.RequestOptions(
            rate=1.0 if self.rate is None else self.rate,
            mix=self.workload,
            requests=self.requests,
            seed=self.seed,
        ).made("--workload")
        mix = asked.parse_mix(self.workload, 0.0, "--workload")
        note = drawn_note(mix, None if objective == "makespan" else self.rate, made, self.seed)
        return replace(made, notes=(*made.notes, note)) if note else made


def plan_of_models(
    models: str,
    fleet: Path,
    requests: PlannedRequests,
    goal: GoalOptions,
    time_limit_s: float | None,
    hwdb: "Hwdb",
    planner: str = "milp",
) -> "ServePlanDocument":
    """The plan of MODEL[,MODEL]: options checked, files read."""
    from tangram_sim.hwdb import load_model
    from tangram_sim.serving_planners.offer_file import load_offers
    from tangram_sim.studies.serving_model_plan import plan_service

    wanted = goal.goal(hwdb)
    if goal.objective == "makespan" and requests.rate is not None:
        raise BadInputError(
            f"--rate {requests.rate:g} means nothing to --objective makespan, a batch that is there at "
            "once: give --objective cost (the least USD/h that carry the rate) or goodput (the most "
            "requests/s), or leave --rate out"
        )
    made = requests.made(goal.objective)
    return plan_service(
        {name: load_model(name) for name in shared.names("MODEL", models)},
        load_offers(fleet, hwdb, priced=goal.objective == "cost" or goal.budget is not None),
        made,
        hwdb,
        wanted,
        time_limit_s=time_limit_s,
        planner=planner,
    )
