"""The command that starts one replica under vLLM, SGLang or TensorRT-LLM, written and read.

Flags are those of the engines' own command lines (vLLM docs, "Engine Arguments"; SGLang docs, "Server
Arguments"; TensorRT-LLM docs, "trtllm-serve"); for prefill and decode apart vLLM docs, "NixlConnector",
SGLang docs, "PD Disaggregation", TensorRT-LLM docs, "Disaggregated Serving". Attention data parallelism: vLLM
docs, "Data Parallel Deployment"; of SGLang ("Server Arguments", --enable-dp-attention) degree, seats and
budget are those of all groups together, of vLLM those of one. Drafts: vLLM docs, "N-Gram Speculation", where
the shortest n-gram looked up is the longest unless it is given; SGLang docs, "Speculative Decoding", whose
number counts the token before them and whose drafts are a tree, at breadth 1 of one branch a match. Uneven
stages: VLLM_PP_LAYER_PARTITION of vLLM, SGLANG_PP_LAYER_PARTITION of SGLang.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tangram_sim.errors import BadInputError
from tangram_sim.export.service.groups import ServedGroup
from tangram_sim.export.uniform import CannotExportError
from tangram_sim.serving.fleet_schema import MOST_DRAFTS

PORT = 8000
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_FP8_CACHE = {"vllm": "fp8", "sglang": "fp8_e4m3", "trtllm": "fp8"}


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """An engine's start command and the names of its flags; an empty name: the engine has no such flag."""

    start: tuple[str, ...]
    served_name: str
    tp: str
    pp: str
    seats: str
    budget: str
    context: str
    memory: str
    dtype: str
    fp8: tuple[str, ...]
    cache: str
    expert_parallel: str
    layers_variable: str
    image: str
    roles: Mapping[str, tuple[str, ...]]  # what starts a replica that only prefills or only decodes
    in_front: str  # what joins the two pools, told in a note
    expert_degree: bool = True  # whether that flag takes a number; without one it means all ranks
    attention_dp: tuple[str, ...] = ()  # flags of groups, the last with their number; (): no such flag
    of_all_groups: bool = False  # whether degree, seats and budget are those of all groups together
    # Flags of so many drafts looked up in the prompt; `serving.engines.drafts_refused`: where there are none.
    drafts: Callable[[int], tuple[str, ...]] = lambda _: ()


def _nixl(role: str) -> str:
    return f'{{"kv_connector":"NixlConnector","kv_role":"{role}"}}'


def _looked_up(drafts: int) -> tuple[str, ...]:
    method = f'"method":"ngram","num_speculative_tokens":{drafts},"prompt_lookup_max":4,"prompt_lookup_min":1'
    return ("--speculative-config", f"{{{method}}}")


ENGINES: Mapping[str, EngineFlags] = {
    "vllm": EngineFlags(
        start=("vllm", "serve"),
        served_name="--served-model-name",
        tp="--tensor-parallel-size",
        pp="--pipeline-parallel-size",
        seats="--max-num-seqs",
        budget="--max-num-batched-tokens",
        context="--max-model-len",
        memory="--gpu-memory-utilization",
        dtype="--dtype",
        fp8=("--quantization", "fp8"),
        cache="--kv-cache-dtype",
        expert_parallel="--enable-expert-parallel",
        layers_variable="VLLM_PP_LAYER_PARTITION",
        roles={
            "prefill": ("--kv-transfer-config", _nixl("kv_producer")),
            "decode": ("--kv-transfer-config", _nixl("kv_consumer")),
        },
        in_front="a proxy that sends a prompt to a producer and then to a consumer",
        image="vllm/vllm-openai:latest",
        expert_degree=False,
        attention_dp=("--data-parallel-size",),
        drafts=_looked_up,
    ),
    "sglang": EngineFlags(
        start=("python3", "-m", "sglang.launch_server", "--model-path"),
        served_name="--served-model-name",
        tp="--tp-size",
        pp="--pp-size",
        seats="--max-running-requests",
        budget="--chunked-prefill-size",
        context="--context-length",
        memory="--mem-fraction-static",
        dtype="--dtype",
        fp8=("--quantization", "fp8"),
        cache="--kv-cache-dtype",
        expert_parallel="--ep-size",
        layers_variable="SGLANG_PP_LAYER_PARTITION",
        roles={
            "prefill": ("--disaggregation-mode", "prefill"),
            "decode": ("--disaggregation-mode", "decode"),
        },
        in_front="sglang_router with --pd-disaggregation and the addresses of both pools",
        image="lmsysorg/sglang:latest",
        attention_dp=("--enable-dp-attention", "--dp-size"),
        of_all_groups=True,
        drafts=lambda count: (
            *("--speculative-algorithm", "NGRAM"),
            *("--speculative-num-draft-tokens", str(count + 1)),
            *("--speculative-ngram-max-bfs-breadth", "1"),
        ),
    ),
    "trtllm": EngineFlags(
        start=("trtllm-serve", "serve"),
        served_name="",
        tp="--tp_size",
        pp="--pp_size",
        seats="--max_batch_size",
        budget="--max_num_tokens",
        context="--max_seq_len",
        memory="--kv_cache_free_gpu_memory_fraction",
        dtype="",
        fp8=(),
        cache="",
        expert_parallel="--ep_size",
        layers_variable="",
        roles={"prefill": ("--server_role", "CONTEXT"), "decode": ("--server_role", "GENERATION")},
        in_front="trtllm-serve disaggregated with both pools in its file, and a cache_transceiver_config in "
        "the options of every replica",
        image="nvcr.io/nvidia/tensorrt-llm/release:latest",
    ),
}


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """Environment variables and arguments of one replica; notes say what no flag can express."""

    environment: tuple[tuple[str, str], ...]
    arguments: tuple[str, ...]
    notes: tuple[str, ...] = ()


def command(group: ServedGroup, engine: str, weights: str) -> LaunchCommand:
    """The command that starts one replica; `weights` is a path or hub name. Raises CannotExportError."""
    flags, depth = ENGINES[engine], len(group.stages)
    notes, environment = list[str](), list[tuple[str, str]]()
    arguments = [*flags.start, weights]
    if flags.served_name:
        arguments += [flags.served_name, group.model]
    together = group.attention_dp if flags.of_all_groups else 1
    arguments += [flags.tp, str(group.tp * together), flags.pp, str(depth)]
    if group.attention_dp > 1:
        arguments += [*flags.attention_dp, str(group.attention_dp)]
    arguments += [flags.seats, str(group.seats * together)]
    arguments += [flags.budget, str(group.budget_tokens * together)]
    arguments += [flags.memory, f"{group.memory_fraction:g}"]
    if group.context_tokens:
        arguments += [flags.context, str(group.context_tokens)]
    if group.precision in _DTYPES:
        arguments += [flags.dtype, _DTYPES[group.precision]] if flags.dtype else []
    elif group.precision == "fp8" and flags.fp8:
        arguments += flags.fp8
    else:
        notes.append(f"{group.name}: {weights} must be a checkpoint in {group.precision}")
    if group.kv_precision == "fp8" or (group.precision == "fp8" and group.kv_precision == "auto"):
        if flags.cache:
            arguments += [flags.cache, _FP8_CACHE[engine]]
        else:
            notes.append(f"{group.name}: the KV cache in fp8 is set in the checkpoint's own configuration")
    if group.expert_parallel:
        ranks = [str(group.tp * group.attention_dp)]
        arguments += [flags.expert_parallel, *(ranks if flags.expert_degree else [])]
    if group.draft_tokens:
        arguments += flags.drafts(group.draft_tokens)
        notes.append(
            f"{group.name}: drafts are looked up in the prompt; name a draft model of yours in that flag "
            f"instead: the plan prices a chain of {group.draft_tokens} drafts with the acceptance given, "
            "and no time to make them"
        )
    if len(set(group.layers)) > 1:
        if not flags.layers_variable:
            raise CannotExportError(
                f"{group.name}: stages of {', '.join(map(str, group.layers))} layers; {engine} cuts evenly"
            )
        environment.append((flags.layers_variable, ",".join(map(str, group.layers))))
    if len(group.kinds) > 1:
        notes.append(
            f"{group.name}: stages run on {' and then '.join(group.kinds)}: join their nodes as the engine "
            "does it for several nodes, in this order"
        )
        if engine == "vllm":
            arguments += ["--distributed-executor-backend", "ray"]
    if group.role in flags.roles:
        arguments += flags.roles[group.role]
        notes.append(f"prefill and decode apart need in front of them {flags.in_front}")
    arguments += ["--host", "0.0.0.0", "--port", str(PORT)]
    return LaunchCommand(tuple(environment), tuple(arguments), tuple(notes))


def parsed(
    engine: str,
    environment: Mapping[str, str],
    arguments: Sequence[str],
    stages: Sequence[tuple[str, int, int]],
    **known: object,
) -> ServedGroup:
    """The group of replicas that a command starts; `stages`, as named in the file, must agree with its flags.

    `known` holds what no flag states: name, model, count, precision, kv_precision. Raises BadInputError.
    """
    flags = ENGINES[engine]
    if tuple(arguments[: len(flags.start)]) != flags.start:
        raise BadInputError(f"not a command of {engine}: {' '.join(arguments[:4])}")
    options = dict(zip(arguments, [*arguments[1:], ""], strict=True))
    try:
        tp, depth = int(options[flags.tp]), int(options[flags.pp])
        seats, budget = int(options[flags.seats]), int(options[flags.budget])
        memory, context = float(options[flags.memory]), int(options.get(flags.context, 0))
        groups = int(options.get(flags.attention_dp[-1], 1)) if flags.attention_dp else 1
    except (KeyError, ValueError) as error:
        raise BadInputError(f"a flag of {engine}'s command is missing or no number: {error}") from None
    if flags.of_all_groups:
        tp, seats, budget = tp // groups, seats // groups, budget // groups
    ranks = str(tp * groups)
    if flags.expert_degree and options.get(flags.expert_parallel, ranks) != ranks:
        raise BadInputError(
            f"experts over {options[flags.expert_parallel]} ranks, not over all {ranks} of a stage"
        )
    line = " ".join([*arguments, ""])
    counts = range(1, MOST_DRAFTS + 1) if flags.drafts(1) else ()
    layers = tuple(layers for _, _, layers in stages)
    uneven = environment.get(flags.layers_variable, "") if flags.layers_variable else ""
    said = tuple(int(part) for part in uneven.split(",")) if uneven else layers
    if len(stages) != depth or {degree for _, degree, _ in stages} != {tp} or said != layers:
        raise BadInputError(f"the command starts {depth} stages of tp {tp}, the file speaks of {stages}")
    told = {options.get(flag, ""): role for role, (flag, _) in flags.roles.items()}
    role = next((role for role, (flag, word) in flags.roles.items() if options.get(flag) == word), "both")
    if role == "both" and any(told):
        raise BadInputError(f"a role that no plan of {engine} has: {', '.join(filter(None, told))}")
    return ServedGroup(
        role=role,
        stages=tuple(stages),
        seats=seats,
        budget_tokens=budget,
        memory_fraction=memory,
        context_tokens=context,
        expert_parallel=flags.expert_parallel in arguments,
        attention_dp=groups,
        draft_tokens=next((count for count in counts if " ".join([*flags.drafts(count), ""]) in line), 0),
        **known,  # type: ignore[arg-type]
    )
