"""Small random services, prefill and decode together or apart, and what both players must agree on."""

import random
from dataclasses import dataclass, fields

import numpy as np

from tangram_sim.serving.disaggregated import KvLink, play_disaggregated
from tangram_sim.serving.fleet import (
    FAIL,
    FAST,
    REFERENCE,
    RESUME,
    FleetReplica,
    PlayedService,
    Presence,
    play,
)
from tangram_sim.serving.replica import RequestLedger
from tangram_sim.serving.router import ROUTERS, Router, named_router
from tangram_sim.serving.workload import Workload
from tests.unit.serving.players import random_case


@dataclass(frozen=True)
class Service:
    """Replicas of unlike rules that come and go, a router, and a link where prefill is apart."""

    workload: Workload
    replicas: list[FleetReplica]
    prefill: list[FleetReplica]
    link: KvLink | None
    router: str
    lag_s: float
    on_loss: str
    seed: int

    def make_router(self, workload: Workload) -> Router:
        weights = {place: (1.0 + place,) for place in range(8)}
        return named_router(self.router, workload, weights, [0] * len(self.workload), self.seed)


def random_service(seed: int) -> Service:
    chance = random.Random(seed)
    apart = chance.random() < 0.4
    pools = [
        [_replica(chance, f"{name}{place}") for place in range(chance.randint(1, 3))] for name in ("a", "b")
    ]
    return Service(
        workload=random_case(seed).workload,
        replicas=pools[0],
        prefill=pools[1] if apart else [],
        link=KvLink(chance.choice([1e4, 1e6]), chance.choice([0.0, 0.01]), 100.0) if apart else None,
        router=chance.choice(ROUTERS),
        lag_s=chance.choice([0.0, 0.0, 0.3]),
        on_loss=chance.choice([RESUME, RESUME, FAIL]),
        seed=seed,
    )


def _replica(chance: random.Random, name: str) -> FleetReplica:
    """The rules and costs of some random case; every third goes, and some of these come back."""
    case = random_case(chance.randrange(10**9))
    presences = [Presence()]
    if chance.random() < 1 / 3:
        down_s = chance.uniform(0.05, 3)
        presences = [Presence(0.0, down_s)]
        if chance.random() < 0.5:
            presences.append(Presence(down_s + chance.uniform(0, 2), boot_s=chance.uniform(0, 1)))
    return FleetReplica(
        name, case.rules, case.table, presences=tuple(presences), notice_s=chance.choice([0.0, 0.1])
    )


def run_service(service: Service, engine: str) -> PlayedService:
    if service.link is None:
        return play(
            service.replicas,
            service.workload,
            service.make_router(service.workload),
            engine=engine,
            on_loss=service.on_loss,
            lag_s=service.lag_s,
        )
    return play_disaggregated(
        service.prefill,
        service.replicas,
        service.link,
        service.workload,
        service.make_router,
        engine=engine,
        on_loss=service.on_loss,
        lag_s=service.lag_s,
    )


def assert_same_service(service: Service) -> PlayedService:
    """Both players: the same places and failures, the same counts, times within 1e-9; nothing is lost."""
    fast, slow = run_service(service, FAST), run_service(service, REFERENCE)
    np.testing.assert_array_equal(fast.instance, slow.instance)
    assert fast.failed == slow.failed
    for field in fields(RequestLedger):
        mine, other = getattr(fast.ledger, field.name), getattr(slow.ledger, field.name)
        if mine.dtype == np.float64:
            np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-9, err_msg=field.name)
        else:
            np.testing.assert_array_equal(mine, other, err_msg=field.name)
    served = ~np.isnan(fast.ledger.finish_s)
    assert served.sum() + len(fast.failed) == len(served)
    for left, right in zip(fast.instances, slow.instances, strict=True):
        assert left.player.peak_blocks == right.player.peak_blocks <= left.given.rules.blocks
        assert left.player.processed_tokens == right.player.processed_tokens
    return fast
