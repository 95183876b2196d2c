"""Simulate a closed loop on a fleet, as a benchmark with a maximum concurrency measures it."""

import time

from tangram_sim.errors import BadInputError
from tangram_sim.serving.fleet import FAST, PlayedService
from tangram_sim.serving.fleet_file import ServiceFleet
from tangram_sim.serving.outcome import Slo
from tangram_sim.serving.waiting_clients import play_clients
from tangram_sim.serving.workload import Workload
from tangram_sim.studies.serving_requests import asking, beyond_context
from tangram_sim.studies.serving_simulation import ServeSimulationDocument, describe_run


def simulate_clients(
    fleet: ServiceFleet,
    workload: Workload,
    clients: int,
    *,
    engine: str = FAST,
    slo: Slo | None = None,
) -> tuple[ServeSimulationDocument, PlayedService]:
    """Simulate the requests in a closed loop of `clients` that wait; arrival times are ignored."""
    begun = time.process_time()
    if fleet.link is not None:
        raise BadInputError("clients who wait are played on replicas that do both, prefill and decode")
    played = play_clients(fleet.replicas, asking(workload, fleet), clients, engine=engine)
    document = describe_run(played, engine, "clients", slo or Slo())
    begins = (
        f"all {clients:,} clients begin at once, as benchmarks do: the first of their requests wait longest"
    )
    document = document.with_fields(
        clients=clients,
        assumptions={**document.assumptions, **fleet.assumptions},
        notes=[*document.notes, *beyond_context(workload, fleet), begins],
        simulate_cpu_s=time.process_time() - begun,
    )
    return document, played
