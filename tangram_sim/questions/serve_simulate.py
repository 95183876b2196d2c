"""The question of `tangram serve simulate`: requests simulated on a fleet of replicas."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tangram_sim.errors import BadInputError
from tangram_sim.fields import HasDocument, about, described, option, part
from tangram_sim.questions.question import Question
from tangram_sim.questions.requests import MadeRequests, slo_of, slo_option
from tangram_sim.questions.shared_fields import Hardware

if TYPE_CHECKING:
    from tangram_sim.serving.fleet import PlayedService
    from tangram_sim.studies.serving_simulation import ServeSimulationDocument

_FLEET: dict[str, Any] = {"group": "Fleet"}


@dataclass(frozen=True)
class PlayedFleet(HasDocument):
    """A simulated service: its document, and every simulated request."""

    document: "ServeSimulationDocument"
    played: "PlayedService"


@described
@dataclass(frozen=True, slots=True)
class ServeSimulateQuestion(Question):
    """Simulate requests on the replicas of a fleet: latencies, throughput, KV-cache use, cost."""

    VERB: ClassVar[str] = "serve simulate"

    fleet: Path = field(
        metadata=about("A fleet file (YAML), or a plan of `serve plan -o`.", positional="PLAN_OR_FLEET")
    )
    requests: MadeRequests = field(default=MadeRequests(), metadata=part())
    clients: int | None = option(
        None,
        "A closed loop in place of `rate=`: so many requests in flight, each client waiting for its answer "
        "(a benchmark's greatest concurrency).",
        label="Or clients that wait for answers",
        least=1,
        group="Requests",
    )
    router: str | None = option(
        None,
        "round_robin, weighted, least_outstanding, power_of_two or prefix.",
        label="Router",
        unset="weighted where the file has shares, else round_robin",
        **_FLEET,
    )
    lag: float = option(
        0.0,
        "Seconds by which the router's view of loads is late.",
        label="Router sees loads so late",
        unit="seconds",
        least=0,
        **_FLEET,
    )
    spot: Path | None = option(
        None, "CSV time_s, gpu, count: GPUs available over time by kind.", on_page=False, **_FLEET
    )
    on_loss: str = option(
        "resume",
        "Requests on an instance that goes: resume elsewhere, or fail.",
        choices=("resume", "fail"),
        on_page=False,
        **_FLEET,
    )
    slo: str | None = slo_option()
    engine: str = option(
        "fast",
        "Player: fast, or reference: iteration by iteration.",
        choices=("fast", "reference"),
        **_FLEET,
    )
    hardware: Hardware = field(default=Hardware(), metadata=part())

    def __post_init__(self) -> None:
        """Raise BadInputError or UnknownNameError for fields that are invalid or contradict each other."""
        Question.__post_init__(self)
        if self.clients is not None and (self.router is not None or self.spot is not None or self.lag):
            raise BadInputError("`clients=` stay with their replica; leave `router=`, `lag=` and `spot=` out")

    def answer(self, *, progress: "Callable[[int, int, str], None] | None" = None) -> PlayedFleet:
        """The simulated fleet. Raises BadInputError or UnknownNameError for bad files and names."""
        from tangram_sim.serving.fleet_file import load_fleet
        from tangram_sim.serving.spot import read_availability
        from tangram_sim.studies.serving_clients import simulate_clients
        from tangram_sim.studies.serving_simulation import simulate_service

        objective = slo_of(self.slo)
        fleet = load_fleet(self.fleet, self.hardware.load())
        asked = self.requests
        work = asked.made() if self.clients is None else asked.without_arrivals("`clients=`")
        if self.spot is not None:
            kinds = [kind for mine in fleet.gpus.values() for kind in mine]
            fleet = fleet.under(read_availability(self.spot, kinds))
        if self.clients is not None:
            found, played = simulate_clients(fleet, work, self.clients, engine=self.engine, slo=objective)
        else:
            found, played = simulate_service(
                fleet,
                work,
                router=self.router or ("weighted" if fleet.shares else "round_robin"),
                engine=self.engine,
                on_loss=self.on_loss,
                lag_s=self.lag,
                slo=objective,
                seed=asked.seed,
                progress=progress,
            )
        return PlayedFleet(self.with_answer(found), played)
