"""A post-training plan as files of frameworks: verl 0.10, NeMo-RL 0.7, AReaL 1.0 (allocation mode)."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import Any

from tangram_sim.clusters import Cluster
from tangram_sim.errors import unknown_name
from tangram_sim.export.formats import Exported
from tangram_sim.export.uniform import CannotExportError
from tangram_sim.post_training.plan import (
    ASYNC,
    COLOCATED,
    HYBRID,
    ONE_STEP_OFF,
    SPLIT,
    SYNC,
    RlPlan,
    RolloutReplicas,
)
from tangram_sim.post_training.workload import PostTraining

Settings = dict[str, Any]  # keys with dots, in the order of the file


def merged(plan: RlPlan) -> RlPlan:
    """The plan with replicas that differ only in their count merged into one group."""
    counts: dict[RolloutReplicas, int] = {}
    for rollout_replicas in plan.rollout:
        alike = replace(rollout_replicas, count=1)
        counts[alike] = counts.get(alike, 0) + rollout_replicas.count
    return replace(
        plan,
        rollout=tuple(replace(rollout_replicas, count=count) for rollout_replicas, count in counts.items()),
    )


def launchable(plan: RlPlan) -> RlPlan:
    """The plan, or the nearest one with equal replicas on one kind: its largest group of them.

    Training GPUs that also generate only train in it.
    """
    if plan.placement == HYBRID:
        plan = replace(plan, placement=SPLIT, lent=(), training=replace(plan.training, offload=False))
    largest = max(merged(plan).rollout, key=lambda rollout_replicas: rollout_replicas.gpus)
    return replace(plan, rollout=(largest,), dispatch="even")


def export_post_training(
    plan: RlPlan, work: PostTraining, to: str, *, nearest: bool = False, fleet: Cluster | None = None
) -> Exported:
    """Files of a framework that launch the plan; `nearest`: that launch the nearest plan it can express.

    `fleet`: the nodes that the plan is for; None: rollout nodes are like the training nodes. Raises
    UnknownNameError for another framework, CannotExportError with the reason for a plan that it cannot
    express.
    """
    if to not in FORMATS:
        raise unknown_name("framework of post-training", to, FORMATS)
    notes = [
        f"made for responses of {work.lengths.mean:,.0f} tokens in the mean, at most {work.lengths.cap:,}"
    ]
    plan = merged(plan)
    objection = _objection(plan, to)
    if objection and nearest:
        whole, plan = plan, launchable(plan)
        notes.append(f"the nearest plan that {to} expresses: {objection}")
        if len(whole.rollout) > 1:
            dropped = whole.rollout_gpus - plan.rollout_gpus
            notes.append(f"{dropped} of {whole.rollout_gpus} rollout GPUs are dropped")
        objection = _objection(plan, to)
    if objection:
        raise CannotExportError(
            f"{to} cannot express the plan: {objection}; give `nearest=True`, or plan a fleet without it"
        )
    text, more = FORMATS[to](plan, work, _rollout_node(plan, fleet))
    name = {"verl": "verl.yaml", "nemo-rl": "nemo-rl.yaml", "areal": "areal.yaml"}[to]
    return Exported({name: text}, (*notes, *more, f"fill in: {'; '.join(_left_open(work, to))}"))


def _left_open(work: PostTraining, to: str) -> list[str]:
    """Configuration keys that a run needs and a plan does not decide: checkpoint, data, reward, folders."""
    model, prompts = work.model.name, "the prompts"
    checkpoint = f"a checkpoint of {model}"
    if to == "verl":
        found = [
            f"actor_rollout_ref.model.path ({checkpoint})",
            f"data.train_files, data.val_files ({prompts})",
            "a reward function (unless verl knows the data set)",
            "trainer.default_local_dir (folder of checkpoints)",
        ]
        if work.critic is not None:
            found.append(f"critic.model.path (a checkpoint of {work.critic.name})")
        return found
    if to == "nemo-rl":
        return [
            f"policy.model_name, policy.tokenizer.name ({checkpoint})",
            f"data.dataset_name ({prompts})",
            "env (the environment that gives rewards)",
            "checkpointing.checkpoint_dir, logger.log_dir (folders)",
        ]
    return [
        f"actor.path, tokenizer_path ({checkpoint})",
        f"train_dataset.path, valid_dataset.path ({prompts})",
        "cluster.fileroot (folder of checkpoints and logs)",
        "cluster.n_nodes, cluster.n_gpus_per_node",
    ]


def _objection(plan: RlPlan, to: str) -> str:
    """What the framework cannot express of a plan; empty if it can express all."""
    if plan.placement == HYBRID:
        return f"training GPUs that generate beside rollout nodes in every step, {to} keeps pools apart"
    if len(plan.rollout) > 1:
        kinds = ", ".join(
            f"{rollout_replicas.count} replicas of tp {rollout_replicas.tp} on {rollout_replicas.gpu}"
            for rollout_replicas in plan.rollout
        )
        return f"unequal rollout replicas ({kinds}), {to} starts equal ones"
    nodes = {(group.node.gpu.name, group.node.gpus) for group in plan.training.cluster.groups}
    if len(nodes) > 1:
        return f"training over {len(nodes)} kinds of nodes, {to} numbers equal ones"
    return ""


def nested(settings: Settings) -> Settings:
    """A tree of settings from keys with dots."""
    tree: Settings = {}
    for key, value in settings.items():
        at = tree
        *path, last = key.split(".")
        for name in path:
            at = at.setdefault(name, {})
        at[last] = value
    return tree


def _yaml(settings: Settings, head: str) -> str:
    import yaml

    return f"# {head}\n" + yaml.safe_dump(nested(settings), sort_keys=False, allow_unicode=True)


def _rollout_node(plan: RlPlan, fleet: Cluster | None) -> int:
    """GPUs per rollout node. Raises CannotExportError if nodes of that kind have different sizes."""
    kind, pool = plan.rollout[0].gpu, plan.training.cluster
    groups = pool.groups if plan.placement == COLOCATED or fleet is None else fleet.groups
    sizes = sorted({group.node.gpus for group in groups if group.node.gpu.name == kind})
    if len(sizes) > 1:
        raise CannotExportError(
            f"rollout on nodes of {' and '.join(map(str, sizes))} {kind}: frameworks number equal nodes; "
            "plan a fleet with one size of them"
        )
    return sizes[0] if sizes else pool.groups[0].node.gpus


def _nodes(gpus: int, per_node: int) -> tuple[int, int]:
    """(nodes, GPUs per node) of a pool of `gpus` GPUs. Raises CannotExportError for partial nodes."""
    if gpus > per_node and gpus % per_node:
        raise CannotExportError(
            f"{gpus} GPUs are no whole nodes of {per_node}, frameworks number equal nodes; plan a fleet "
            "without a rest"
        )
    return ceil(gpus / per_node), min(gpus, per_node)


def _update_prompts(work: PostTraining) -> int:
    """Prompts per update. Raises CannotExportError if an update splits a group of samples."""
    if work.update_sequences % work.samples:
        raise CannotExportError(
            f"an update of {work.update_sequences:g} sequences cuts groups of {work.samples}: give "
            f"`train_batch_sequences` in multiples of {work.samples}"
        )
    return round(work.update_sequences / work.samples)


def verl(plan: RlPlan, work: PostTraining, rollout_node: int) -> tuple[str, list[str]]:
    """(text, notes) for verl's V1 trainer on Megatron. Raises CannotExportError for refused batch sizes."""
    pool, engine, layout = plan.training, plan.rollout[0], plan.training.layout
    nodes, per_node = _nodes(pool.gpus, pool.cluster.groups[0].node.gpus)
    split = plan.placement != COLOCATED
    if work.sequences % pool.gpus:
        raise CannotExportError(
            f"verl: {work.prompts} prompts x {work.samples} do not divide over {pool.gpus} training GPUs; "
            f"give `prompts` so that they do"
        )
    update = _update_prompts(work)
    mode = {SYNC: "sync", ONE_STEP_OFF: "separate_async", ASYNC: "separate_async"}[plan.mode.kind]
    if split and mode == "sync":
        mode = "separate_async"
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    settings: Settings = {
        "algorithm.adv_estimator": "gae" if work.critic is not None else "grpo",
        "algorithm.rollout_correction.bypass_mode": not work.old_logprobs,
        "data.train_batch_size": work.prompts,
        "data.max_prompt_length": max(round(2 * work.prompt_tokens), 1),
        "data.max_response_length": work.lengths.cap,
        f"{actor}.ppo_mini_batch_size": update,
        f"{actor}.ppo_epochs": work.epochs,
        f"{actor}.use_dynamic_bsz": bool(pool.pack_tokens),
        f"{actor}.ppo_max_token_len_per_gpu": pool.pack_tokens or 16384,
        f"{actor}.use_kl_loss": work.reference,
        f"{actor}.megatron.tensor_model_parallel_size": layout.tp,
        f"{actor}.megatron.pipeline_model_parallel_size": layout.pp,
        f"{actor}.megatron.context_parallel_size": layout.cp,
        f"{actor}.megatron.expert_model_parallel_size": layout.ep,
        f"{actor}.megatron.param_offload": pool.offload,
        f"{actor}.megatron.grad_offload": pool.offload,
        f"{actor}.megatron.optimizer_offload": pool.offload,
        f"{actor}.megatron.override_transformer_config.recompute_granularity": (
            None if layout.recompute == "none" else layout.recompute
        ),
        f"{rollout}.name": engine.engine,
        f"{rollout}.n": work.samples,
        f"{rollout}.tensor_model_parallel_size": engine.tp,
        f"{rollout}.pipeline_model_parallel_size": engine.pp,
        f"{rollout}.gpu_memory_utilization": engine.memory_fraction or 0.5,
        f"{rollout}.free_cache_engine": not split,
        f"{rollout}.log_prob_max_token_len_per_gpu": pool.logprob_tokens or pool.pack_tokens or 16384,
        "trainer.nnodes": nodes,
        "trainer.n_gpus_per_node": per_node,
        "trainer.use_v1": True,
        "trainer.v1.trainer_mode": mode,
    }
    notes = []
    if split:
        wide, gpus = _nodes(engine.gpus, rollout_node)
        settings |= {
            f"{rollout}.nnodes": wide,
            f"{rollout}.n_gpus_per_node": gpus,
            f"{rollout}.checkpoint_engine.backend": "nccl",
            "trainer.v1.separate_async.parameter_sync_step": work.updates,
            "trainer.v1.sampler.max_off_policy_threshold": plan.mode.eta,
        }
        if plan.mode.kind == SYNC:
            notes.append("verl's split trainer is asynchronous: a staleness of 0 keeps it on-policy")
    return _yaml(settings, "verl 0.10.0.dev, V1 trainer, Megatron back end"), notes


def nemo_rl(plan: RlPlan, work: PostTraining, rollout_node: int) -> tuple[str, list[str]]:
    """(configuration text, notes) for NeMo-RL's GRPO with its Megatron back end. Raises CannotExportError."""
    pool, engine, layout = plan.training, plan.rollout[0], plan.training.layout
    per_node = pool.cluster.groups[0].node.gpus
    split = plan.placement != COLOCATED
    if work.critic is not None:
        raise CannotExportError("NeMo-RL's GRPO has no critic; plan `algorithm=grpo` or export to verl")
    trained, _ = _nodes(pool.gpus, per_node)
    generated, gpus = _nodes(engine.gpus, rollout_node)
    if split and rollout_node != per_node:
        raise CannotExportError(
            f"NeMo-RL's nodes have one number of GPUs: {per_node} train, {rollout_node} generate; export "
            "to verl"
        )
    longest = round(work.prompt_tokens) + work.lengths.cap
    ahead = split and plan.mode.kind != SYNC
    megatron, generation = "policy.megatron_cfg", "policy.generation"
    settings: Settings = {
        "grpo.num_prompts_per_step": work.prompts,
        "grpo.num_generations_per_prompt": work.samples,
        "grpo.async_grpo.enabled": ahead,
        "grpo.async_grpo.max_trajectory_age_steps": max(plan.mode.eta, 1),
        "grpo.async_grpo.in_flight_weight_updates": ahead and plan.mode.at_sync == "in-flight",
        "loss_fn.reference_policy_kl_penalty": 0.01 if work.reference else 0.0,
        "loss_fn.force_on_policy_ratio": not work.old_logprobs,
        "loss_fn.use_importance_sampling_correction": ahead,
        "policy.train_global_batch_size": round(work.update_sequences),
        "policy.train_micro_batch_size": max((pool.pack_tokens or longest) // longest, 1),
        "policy.max_total_sequence_length": longest,
        "policy.sequence_packing.enabled": bool(pool.pack_tokens),
        "policy.sequence_packing.train_mb_tokens": max(pool.pack_tokens, longest),
        "policy.dynamic_batching.enabled": False,
        f"{megatron}.enabled": True,
        f"{megatron}.tensor_model_parallel_size": layout.tp,
        f"{megatron}.pipeline_model_parallel_size": layout.pp,
        f"{megatron}.context_parallel_size": layout.cp,
        f"{megatron}.expert_model_parallel_size": layout.ep,
        f"{megatron}.activation_checkpointing": layout.recompute != "none",
        f"{megatron}.sequence_parallel": layout.sequence_parallel,
        f"{generation}.backend": engine.engine,
        f"{generation}.colocated.enabled": not split,
        f"{generation}.vllm_cfg.tensor_parallel_size": engine.tp,
        f"{generation}.vllm_cfg.pipeline_parallel_size": engine.pp,
        f"{generation}.vllm_cfg.expert_parallel_size": max(engine.ep // engine.tp, 1) * engine.tp
        if engine.ep > 1
        else 1,
        f"{generation}.vllm_cfg.gpu_memory_utilization": engine.memory_fraction or 0.6,
        f"{generation}.vllm_cfg.async_engine": ahead,
        "cluster.num_nodes": trained + generated if split else trained,
        "cluster.gpus_per_node": min(per_node, pool.gpus),
    }
    if split:
        settings |= {
            f"{generation}.colocated.resources.num_nodes": generated,
            f"{generation}.colocated.resources.gpus_per_node": gpus,
        }
    return _yaml(settings, "NeMo-RL v0.7.0, GRPO, Megatron back end"), []


def areal(plan: RlPlan, work: PostTraining, _node: int) -> tuple[str, list[str]]:
    """(settings, notes) for AReaL: `engines+trainer`, two pools. Raises CannotExportError for one pool."""
    engine, layout = plan.rollout[0], plan.training.layout
    if plan.placement == COLOCATED:
        raise CannotExportError("AReaL's allocation mode separates pools; plan with `placement=split`")

    def degrees(dp: int, tp: int, pp: int, **more: int) -> str:
        found = {"d": dp, "t": tp, "p": pp, **more}
        return "".join(f"{name}{value}" for name, value in found.items() if value > 1 or name == "d")

    engines = f"{engine.engine}:{degrees(engine.count, engine.tp, engine.pp)}"
    trainer = f"megatron:{degrees(plan.training.dp, layout.tp, layout.pp, c=layout.cp, e=layout.ep)}"
    settings: Settings = {
        "allocation_mode": f"{engines}+{trainer}",
        "max_head_offpolicyness": plan.mode.eta,
        "max_concurrent_rollouts": round(work.sequences * (plan.mode.eta + 1)),
    }
    return _yaml(settings, "AReaL v1.0"), []


FORMATS: dict[str, Callable[[RlPlan, PostTraining, int], tuple[str, list[str]]]] = {
    "verl": verl,
    "nemo-rl": nemo_rl,
    "areal": areal,
}
