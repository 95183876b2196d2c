"""Steps in every mode: laws that tie them to training, to serving and to each other."""

from dataclasses import replace

import numpy as np
import pytest

from tangram_sim.errors import InfeasibleError, TangramError
from tangram_sim.planners.uniform.layouts import Uniform, uniform_plan
from tangram_sim.post_training.asynchronous import play_loop
from tangram_sim.post_training.lengths import LognormalLengths
from tangram_sim.post_training.plan import ASYNC, DRAIN, ONE_STEP_OFF, PARTIAL, Mode, RolloutReplicas
from tangram_sim.post_training.rollout import fleet_of
from tangram_sim.post_training.step import PHASES, play_step
from tangram_sim.post_training.sync import bound_s, sync_of, tensors_of
from tangram_sim.post_training.training_phases import phases_of
from tangram_sim.post_training.workload import updates_of
from tangram_sim.serving.fleet import FAST, REFERENCE
from tangram_sim.studies.forecast import seconds_of
from tangram_sim.training.job import Job
from tests.unit.post_training.setups import HWDB, NOTHING, colocated, split, training, work


def test_an_update_of_equal_full_sequences_is_a_step_of_training() -> None:
    equal = replace(work(16, 8), lengths=LognormalLengths(mu=np.log(924.0), sigma=0.0, cap=924))
    pool = replace(training(), pack_tokens=0, padded_tokens=1024)
    layout = pool.layout
    job = Job(global_batch=128, seq=1024, dtype="bf16", stack="megatron")
    plan = uniform_plan(equal.model, pool.cluster, job, replace(layout, dp=4))
    assert phases_of(equal.model, equal, pool, HWDB).update_s == pytest.approx(seconds_of(plan, HWDB))


def test_a_colocated_step_is_the_sum_of_its_phases() -> None:
    found = play_step(work(), colocated(), HWDB)
    assert found.step_s == pytest.approx(sum(found.phases_s.values()))
    assert set(found.phases_s) == set(PHASES) and found.phases_s["switch"] > 0


def test_one_step_off_hides_the_shorter_pool() -> None:
    sync, ahead = (play_step(work(), split(mode), HWDB) for mode in (Mode(), Mode(ONE_STEP_OFF, eta=1)))
    phases = sync.phases_s
    trainer = sum(phases.values()) - phases["generation"] - phases["weight_sync"]
    assert sync.step_s == pytest.approx(sum(phases.values()))
    assert ahead.step_s == pytest.approx(phases["weight_sync"] + max(phases["generation"], trainer))
    assert ahead.step_s <= sync.step_s and ahead.ages == (1,)


def test_asynchronous_without_staleness_and_drained_is_synchronous() -> None:
    sync = play_step(work(), split(), HWDB)
    drained = play_step(work(), split(Mode(ASYNC, eta=0, at_sync=DRAIN)), HWDB)
    # Lengths of each step are drawn anew: the mean of sixteen steps against one.
    assert drained.step_s == pytest.approx(sync.step_s, rel=0.15)
    assert max(drained.ages) == 0


@pytest.mark.parametrize("at_sync", ["in-flight", PARTIAL])
def test_more_staleness_never_slows_a_loop_and_bounds_ages(at_sync: str) -> None:
    fleet = fleet_of(work(), [RolloutReplicas("H20-96GB", 2)], HWDB)
    loops = [
        play_loop(fleet, work(), Mode(ASYNC, eta=eta, at_sync=at_sync), 2.0, 0.0, seed=1) for eta in (0, 1, 4)
    ]
    for eta, loop in zip((0, 1, 4), loops, strict=True):
        assert loop.ages.min() >= 0 and loop.ages.max() <= eta
        assert loop.begun == loop.consumed + loop.queued + loop.running
    assert loops[0].step_s >= loops[1].step_s * 0.99 >= loops[2].step_s * 0.98


@pytest.mark.parametrize("fetches", [1, 4])
def test_a_trainer_that_is_slower_than_rollout_sets_the_pace(fetches: int) -> None:
    """However many times a step it takes what is complete."""
    fleet = fleet_of(work(), [RolloutReplicas("H20-96GB", 8)], HWDB)
    loop = play_loop(fleet, work(), Mode(ASYNC, eta=4, fetches=fetches), 60.0, 5.0)
    assert loop.step_s == pytest.approx(65.0) and loop.waited_s == pytest.approx(0.0)


def test_both_players_agree_on_an_asynchronous_loop() -> None:
    fleet = fleet_of(work(8, 2), [RolloutReplicas("H20-96GB", 2)], HWDB)
    loops = [
        play_loop(fleet, work(8, 2), Mode(ASYNC, eta=1, at_sync=PARTIAL), 1.0, 0.3, steps=6, engine=engine)
        for engine in (FAST, REFERENCE)
    ]
    np.testing.assert_allclose(loops[0].sync_ends_s, loops[1].sync_ends_s, rtol=1e-9)


def test_groups_that_may_begin_follow_the_rule() -> None:
    assert Mode(ASYNC, eta=1).may_begin(64, 3, 0, 0) == 320
    assert Mode(ASYNC, share=0.5).may_begin(512, 0, 0, 0) == 768
    assert Mode(ASYNC, share=0.5).may_begin(512, 1, 768, 200) == 568


def test_updates_follow_from_sequences() -> None:
    assert updates_of(2048, 512) == 4
    assert updates_of(512 * 16, 32 * 16) == 16
    with pytest.raises(TangramError, match="train_batch_sequences"):
        updates_of(64, 128)


@pytest.mark.parametrize(("ranks", "least"), [(1, 1.22), (2, 0.61), (8, 0.153)])
def test_a_weight_sync_is_bound_by_what_each_rank_takes_in(ranks: int, least: float) -> None:
    assert bound_s(61.1e9, ranks, 64, 50e9) == pytest.approx(least, abs=0.005)


def test_no_method_beats_the_bound() -> None:
    pool = training()
    for method in ("broadcast", "bucketed", "packed", "sharded", "delta", "gather"):
        found = sync_of(work().model, "bf16", 2, pool.cluster, method, overheads=NOTHING, hwdb=HWDB)
        assert found.seconds >= found.bound_s > 0


@pytest.mark.parametrize("method", ["broadcast", "bucketed", "packed", "sharded", "delta"])
def test_weights_for_nodes_of_their_own_go_through_network_ports(method: str) -> None:
    def seconds(pool: str, rollout: tuple[str, ...]) -> float:
        cluster = training(pool).cluster
        return sync_of(
            work().model, "bf16", 1, cluster, method, overheads=NOTHING, hwdb=HWDB, rollout=rollout
        ).bound_s

    own, apart = seconds("H100x8:1", ()), seconds("H100x8:1", ("H20-96GB",))
    assert apart > 2 * own  # one node trains, and NVLink ends at its walls
    assert seconds("H100x8:1", ("L40S",)) >= apart  # the slower port is rollout's
    assert seconds("H100x8:2", ("H100-SXM5-80GB",)) == pytest.approx(seconds("H100x8:2", ()))


def test_experts_make_many_tensors() -> None:
    from tangram_sim.hwdb import load_model

    assert tensors_of(load_model("qwen3-30b-a3b")) > 18_000 > 1000 > tensors_of(load_model("llama3-8b"))


def test_faster_gpus_for_rollout_never_slow_the_step() -> None:
    slow, fast = (play_step(work(), split(gpu=gpu), HWDB) for gpu in ("L40S", "H100-SXM5-80GB"))
    assert fast.step_s <= slow.step_s


def test_a_phase_that_does_not_fit_is_named() -> None:
    plan = split()
    tight = replace(plan, training=replace(plan.training, layout=Uniform(tp=1, recompute="none")))
    with pytest.raises(InfeasibleError, match="policy update"):
        play_step(work(), tight, HWDB)
    engine = replace(colocated(), training=replace(training(), offload=False))
    full = replace(engine, rollout=(replace(engine.rollout[0], memory_fraction=0.95),))
    with pytest.raises(InfeasibleError, match="generation"):
        play_step(work(), full, HWDB)
    for plan in (tight, full):  # a measured run did fit, whatever the model says
        assert play_step(work(), plan, HWDB, must_fit=False).step_s > 0


def test_the_same_seed_gives_the_same_step() -> None:
    first, again, other = (play_step(work(), split(), HWDB, seed=seed).step_s for seed in (3, 3, 4))
    assert first == again != other
