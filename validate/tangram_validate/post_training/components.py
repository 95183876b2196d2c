"""What a run's step is made of before overheads: seconds of its phases as priced, ready for fits.

A fit asks for thousands of steps under other overheads: they are put together from these parts, where the
player would play each rollout again.
"""

from dataclasses import dataclass, replace

from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import has_experts
from tangram_sim.post_training.asynchronous import play_loop
from tangram_sim.post_training.overheads import Overheads
from tangram_sim.post_training.plan import ASYNC, COLOCATED, ONE_STEP_OFF
from tangram_sim.post_training.rollout import fleet_of, play_rollout
from tangram_sim.post_training.step import priced_training
from tangram_sim.post_training.sync import sync_of
from tangram_sim.serving.fleet import FleetReplica
from tangram_validate.post_training.reading import RlRun, fitting_rollout

_PROBE_S = 1e-3  # beside each iteration, to find how many of them a rollout waits for


@dataclass(frozen=True)
class Components:
    """A run, its plan as it fits, and seconds before overheads.

    `iterations`: engine iterations that the rollout's end waits for. `steady_s`: seconds a step of rollout
    alone under the mode's staleness rule (asynchronous runs), with `steady_iterations` of them.
    """

    run: RlRun
    generation_s: float
    iterations: float
    forward_s: float
    update_s: float
    static_bytes: float
    steady_s: float = 0.0
    steady_iterations: float = 0.0


def components_of(run: RlRun, hwdb: Hwdb) -> Components:
    """Price and play a run once. Raises TangramError where its layouts break a law or nothing fits."""
    fitting = None
    for replicas in fitting_rollout(run):
        try:
            fleet = fleet_of(run.work, [replicas], hwdb)
        except InfeasibleError as error:
            fitting = error
            continue
        run = replace(run, plan=replace(run.plan, rollout=(replicas,)))
        return _played(run, fleet, hwdb)
    raise fitting or InfeasibleError("rollout: no replicas")


def _played(run: RlRun, fleet: list[FleetReplica], hwdb: Hwdb) -> Components:
    work, plan = run.work, run.plan
    training = priced_training(work, plan.training, hwdb)
    lengths = work.lengths.draw(work.prompts, work.samples, 0)
    slower = fleet_of(work, plan.rollout, hwdb, 1.0, _PROBE_S)
    seconds = play_rollout(fleet, work.prompt_tokens, lengths).seconds
    probed = play_rollout(slower, work.prompt_tokens, lengths).seconds
    steady = steady_probed = 0.0
    if run.scored and plan.placement != COLOCATED and plan.mode.kind == ASYNC:
        short = max(seconds, 1e-3) / 50.0
        steady = play_loop(fleet, work, plan.mode, short, 0.0, steps=12).step_s
        steady_probed = play_loop(slower, work, plan.mode, short, 0.0, steps=12).step_s
    ratio = run.stand_in
    return Components(
        run,
        generation_s=seconds * ratio,
        iterations=(probed - seconds) / _PROBE_S,
        forward_s=training.forward_s * ratio,
        update_s=training.update_s * work.updates * ratio,
        static_bytes=training.static_bytes * ratio,
        steady_s=steady * ratio,
        steady_iterations=(steady_probed - steady) / _PROBE_S,
    )


def phases_under(parts: Components, extra: Overheads, hwdb: Hwdb) -> dict[str, float]:
    """Seconds of each phase of a run under these overheads."""
    work, plan = parts.run.work, parts.run.plan
    sparse = extra.sparse_update_scale if has_experts(work.model) else 1.0
    forward = parts.forward_s * extra.forward_scale * sparse
    update = parts.update_s * extra.update_scale * sparse
    colocated = plan.placement == COLOCATED
    sync = sync_of(
        work.model,
        work.rollout_precision,
        plan.rollout[0].tp * plan.rollout[0].pp,
        plan.training.cluster,
        plan.sync_method,
        overheads=extra,
        hwdb=hwdb,
        rollout=() if colocated else [plan.rollout[0].gpu],
    )
    return {
        "generation": parts.generation_s * extra.rollout_scale + parts.iterations * extra.rollout_iteration_s,
        "reward": forward if work.reward_model is not None else 0.0,
        "old_logprobs": forward if work.old_logprobs else 0.0,
        "reference": forward if work.reference else 0.0,
        "values": forward if work.critic is not None else 0.0,
        "update": update,
        "critic_update": update if work.critic is not None else 0.0,
        "weight_sync": sync.seconds + extra.sync_s,
        "switch": extra.switch_s + 2.0 * parts.static_bytes / extra.host_bytes_per_s if colocated else 0.0,
        "other": extra.step_s,
    }


def step_under(parts: Components, extra: Overheads, hwdb: Hwdb) -> float:
    """Seconds of a run's step under these overheads, put together as the modes do."""
    phases = phases_under(parts, extra, hwdb)
    mode, colocated = parts.run.plan.mode, parts.run.plan.placement == COLOCATED
    generation, sync = phases["generation"], phases["weight_sync"]
    trainer = sum(phases.values()) - generation - sync
    if colocated or mode.kind not in (ONE_STEP_OFF, ASYNC):
        return generation + sync + trainer
    if mode.kind == ASYNC:
        generation = (
            parts.steady_s * extra.rollout_scale + parts.steady_iterations * extra.rollout_iteration_s
        )
    return max(generation, trainer) + sync
