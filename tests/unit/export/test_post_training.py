"""Files of verl, NeMo-RL and AReaL: keys that these frameworks have, and the laws that they demand."""

import csv
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from tangram_sim.errors import UnknownNameError
from tangram_sim.export.post_training import export_post_training, launchable
from tangram_sim.export.uniform import CannotExportError
from tangram_sim.hwdb import load_cluster
from tangram_sim.post_training.plan import ASYNC, IN_FLIGHT, Mode, RlPlan, RolloutReplicas
from tests.places import ROOT
from tests.records import hold
from tests.unit.post_training.setups import HWDB, colocated, split, work

# Keys of the frameworks' own configuration files, with file and version of each.
with (ROOT / "tests/records/rl_config_keys.csv").open() as stream:
    KEYS = {(row["framework"].lower(), row["key"]) for row in csv.DictReader(stream)}
MODES = [Mode(), Mode("one-step-off", 1), Mode(ASYNC, 4, at_sync=IN_FLIGHT)]
STEP = replace(work(64, 16), updates=4)


def flat(tree: dict, head: str = "") -> dict:
    found = {}
    for key, value in tree.items():
        name = f"{head}.{key}" if head else key
        found |= flat(value, name) if isinstance(value, dict) else {name: value}
    return found


def written(plan: RlPlan, to: str) -> dict:
    return flat(yaml.safe_load(next(iter(export_post_training(plan, STEP, to).files.values()))))


@pytest.mark.parametrize("to", ["verl", "nemo-rl", "areal"])
@pytest.mark.parametrize("plan", [colocated(), *(split(mode) for mode in MODES)])
def test_every_key_is_one_that_the_framework_has(plan: RlPlan, to: str) -> None:
    if to == "areal" and plan.placement == "colocated":
        with pytest.raises(CannotExportError, match="placement=split"):
            export_post_training(plan, STEP, to)
        return
    for key in written(plan, to):
        assert (to, key) in KEYS, key


def exports() -> dict[str, Callable[[], dict[str, Any]]]:
    """Every key of every framework, packed and not."""
    plans = {"colocated": colocated(), **{mode.kind: split(mode) for mode in MODES}}
    found: dict[str, Callable[[], dict[str, Any]]] = {}
    for to, (name, plan), pack in product(("verl", "nemo-rl", "areal"), plans.items(), (0, 2048)):
        if (to, name) != ("areal", "colocated"):
            pool = replace(plan.training, pack_tokens=pack)
            found[f"{to}, {name}, {pack}"] = partial(written, replace(plan, training=pool), to)
    return found


@pytest.mark.parametrize("case", exports())
def test_values_are_as_recorded(case: str) -> None:
    hold("rl_exports", case, exports()[case]())


@pytest.mark.parametrize("plan", [colocated(), *(split(mode) for mode in MODES)])
def test_verl_is_given_batches_that_it_accepts(plan: RlPlan) -> None:
    found = written(plan, "verl")
    assert found["data.train_batch_size"] * found["actor_rollout_ref.rollout.n"] % plan.training.gpus == 0
    assert found["data.train_batch_size"] == 4 * found["actor_rollout_ref.actor.ppo_mini_batch_size"]
    if plan.placement == "split":
        assert found["trainer.v1.separate_async.parameter_sync_step"] == 4
        assert found["actor_rollout_ref.rollout.checkpoint_engine.backend"] != "naive"
        assert found["actor_rollout_ref.rollout.nnodes"] == 1
    else:
        assert "actor_rollout_ref.rollout.nnodes" not in found


@pytest.mark.parametrize("mode", MODES)
def test_nemo_is_asynchronous_only_on_pools_of_its_own(mode: Mode) -> None:
    found = written(split(mode), "nemo-rl")
    ahead = mode.kind != "sync"
    assert found["policy.generation.colocated.enabled"] is False
    assert found["grpo.async_grpo.enabled"] is ahead
    assert found["policy.generation.vllm_cfg.async_engine"] is ahead
    assert found["loss_fn.use_importance_sampling_correction"] is ahead
    assert found["policy.train_global_batch_size"] == 256
    assert found["cluster.num_nodes"] == 2 and found["policy.generation.colocated.resources.num_nodes"] == 1


def test_areal_separates_engines_from_the_trainer() -> None:
    found = written(split(MODES[2]), "areal")
    assert found["allocation_mode"] == "vllm:d8+megatron:d4t2"
    assert found["max_head_offpolicyness"] == 4


def test_what_a_framework_cannot_express_is_said_with_the_nearest_plan() -> None:
    both = (RolloutReplicas("H20-96GB", 8), RolloutReplicas("L40S", 4, 2))
    plan = replace(split(), rollout=both)
    with pytest.raises(CannotExportError, match="unequal rollout replicas"):
        export_post_training(plan, STEP, "verl")
    nearest = export_post_training(plan, STEP, "verl", nearest=True)
    assert any("nearest plan" in note for note in nearest.notes)
    assert launchable(plan).rollout == both[:1]
    with pytest.raises(UnknownNameError, match="trl"):
        export_post_training(plan, STEP, "trl")


def test_groups_of_equal_replicas_are_one_and_others_are_not_dropped_unsaid() -> None:
    halves = replace(split(), rollout=(RolloutReplicas("H20-96GB", 3), RolloutReplicas("H20-96GB", 5)))
    assert written(halves, "verl") == written(
        replace(split(), rollout=(RolloutReplicas("H20-96GB", 8),)), "verl"
    )
    parts = (RolloutReplicas("H20-96GB", 8), RolloutReplicas("H20-96GB", 4, memory_fraction=0.5))
    plan = replace(split(), rollout=parts)
    with pytest.raises(CannotExportError, match="unequal rollout replicas"):
        export_post_training(plan, STEP, "areal")
    nearest = export_post_training(plan, STEP, "areal", nearest=True)
    assert any("4 of 12 rollout GPUs are dropped" in note for note in nearest.notes)


def test_rollout_is_on_nodes_of_its_own_size() -> None:
    fleet = load_cluster("H100x8:1+H20x4:2", HWDB)
    found = export_post_training(split(), STEP, "verl", fleet=fleet)
    keys = flat(yaml.safe_load(found.files["verl.yaml"]))
    assert keys["actor_rollout_ref.rollout.nnodes"] == 2
    assert keys["actor_rollout_ref.rollout.n_gpus_per_node"] == 4
    with pytest.raises(CannotExportError, match="8 train, 4 generate"):
        export_post_training(split(), STEP, "nemo-rl", fleet=fleet)
    with pytest.raises(CannotExportError, match="no whole nodes of 4"):
        export_post_training(split(count=6), STEP, "verl", fleet=fleet)


def test_a_critic_or_a_cut_group_is_refused_with_what_to_give() -> None:
    with pytest.raises(CannotExportError, match="algorithm=grpo"):
        export_post_training(split(), replace(STEP, critic=STEP.model), "nemo-rl")
    with pytest.raises(CannotExportError, match="multiples of 16"):
        export_post_training(split(), replace(STEP, updates=128), "verl")


def test_the_verb_writes_the_files(tmp_path: Path) -> None:
    from tests.commands import tangram

    plan = tmp_path / "plan.json"
    step = ("--prompts", "64", "--samples", "4", "--response-tokens", "400", "--cap", "1600")
    made = tangram("rl", "plan", "qwen2.5-7b", "H800x8:2", *step, "--placement", "split", "-o", plan)
    assert not made.code, made.err
    found = tangram("rl", "export", plan, "--for", "nemo-rl", "-o", tmp_path / "out")
    assert not found.code, found.err
    assert (tmp_path / "out" / "nemo-rl.yaml").exists()


@pytest.mark.parametrize("to", ["verl", "nemo-rl", "areal"])
def test_what_the_user_has_to_fill_in_is_listed(to: str) -> None:
    notes = export_post_training(split(MODES[2]), STEP, to).notes
    (left,) = [note for note in notes if note.startswith("fill in:")]
    assert "checkpoint of qwen2.5-7b" in left
    assert "prompts" in left


def test_the_engine_of_rollout_is_named() -> None:
    assert written(split(), "verl")["actor_rollout_ref.rollout.name"] == "vllm"


@pytest.mark.parametrize("to", ["verl", "nemo-rl"])
def test_training_gpus_that_generate_beside_others_are_refused_or_left_to_training(to: str) -> None:
    base = split()
    lent = (RolloutReplicas("H100-SXM5-80GB", 8, memory_fraction=0.6),)
    hybrid = replace(base, placement="hybrid", lent=lent, training=replace(base.training, offload=True))
    with pytest.raises(CannotExportError, match="keeps pools apart"):
        export_post_training(hybrid, STEP, to)
    nearest = export_post_training(hybrid, STEP, to, nearest=True)
    assert yaml.safe_load(next(iter(nearest.files.values()))) == yaml.safe_load(
        next(
            iter(
                export_post_training(replace(base, training=nearest_training(base)), STEP, to).files.values()
            )
        )
    )


def nearest_training(plan: RlPlan):
    return replace(plan.training, offload=False)
