"""Run inside Megatron-LM's environment: its parser, its validation and its model on every cell.

python run_megatron.py SOURCE CELLS RECORD: SOURCE holds `megatron` of core_v0.16.1, CELLS expected.json.
"""

import json
import os
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any

SOURCE, CELLS, RECORD = map(Path, sys.argv[1:4])
sys.path.insert(0, str(SOURCE))
warnings.simplefilter("ignore")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402


class _Gpu:
    major, minor, multi_processor_count = 9, 0, 100


# Stand-ins for the GPU that is not here: what the parser asks of the oldest kind of the plan.
torch.cuda.get_device_capability = lambda *_: (_Gpu.major, 0)  # type: ignore[assignment]
torch.cuda.get_device_properties = lambda *_: _Gpu  # type: ignore[assignment]
torch.cuda.current_device = lambda: torch.device("meta")  # type: ignore[assignment,return-value]
torch.cuda.Stream = lambda *_, **__: None  # type: ignore[assignment,misc]

from megatron.core import parallel_state  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import (  # noqa: E402
    get_gpt_decoder_block_spec,
    get_gpt_layer_local_spec,
)
from megatron.training.arguments import (  # noqa: E402
    add_megatron_arguments,
    core_transformer_config_from_args,
    parse_args,
    validate_args,
)

# What is the user's to give, and kernels that this machine lacks.
GIVEN = "--lr 1e-4 --train-iters 10 --tokenizer-type NullTokenizer"
LOCAL = "--no-rope-fusion --transformer-impl local --no-persist-layer-norm --no-masked-softmax-fusion"
LOCAL += " --no-gradient-accumulation-fusion"
FIELDS = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups"),
    *("kv_channels", "layernorm_epsilon", "normalization", "add_bias_linear", "add_qkv_bias"),
    *("qk_layernorm", "gated_linear_unit", "num_moe_experts", "moe_router_topk", "moe_ffn_hidden_size"),
    *("moe_grouped_gemm", "moe_token_dispatcher_type", "moe_router_score_function", "moe_router_dtype"),
    *("moe_router_pre_softmax", "moe_router_num_groups", "moe_router_group_topk"),
    *("moe_router_topk_scaling_factor", "moe_router_enable_expert_bias"),
    *("moe_router_load_balancing_type", "moe_aux_loss_coeff", "window_size"),
    *("moe_shared_expert_intermediate_size", "sequence_parallel", "tensor_model_parallel_size"),
    *("context_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size"),
    *("expert_tensor_parallel_size", "softmax_type", "layernorm_zero_centered_gamma", "bf16"),
    *("recompute_granularity", "q_lora_rank", "kv_lora_rank", "rope_type", "rotary_scaling_factor"),
    *("mscale", "mscale_all_dim"),
)
ARGUMENTS = [
    "rotary_base",
    "rotary_percent",
    "use_rope_scaling",
    "rope_scaling_factor",
    "position_embedding_type",
]


def parsed(cell: str, row: dict[str, Any]) -> Any:
    """The arguments, validated as Megatron-LM does at its start."""
    for name in ("CUDA_DEVICE_MAX_CONNECTIONS",):
        os.environ.pop(name, None)
    os.environ.update(row["environment"], WORLD_SIZE=str(row["world"]), RANK="0", LOCAL_RANK="0")
    _Gpu.major = row["capability"]
    text = (CELLS / cell / "megatron.args").read_text()
    sys.argv = ["pretrain_gpt.py", *shlex.split(text), *shlex.split(f"{GIVEN} {LOCAL}")]
    args = parse_args()
    args.padded_vocab_size = row["vocab"]
    validate_args(args, {})
    return args


def counts(args: Any, row: dict[str, Any]) -> list[int]:
    """Weights of every stage, built on the meta device without tensor, context and expert parallelism."""
    found = []
    chunks = args.virtual_pipeline_model_parallel_size
    for rank in range(row["pp"]):
        if dist.is_initialized():
            parallel_state.destroy_model_parallel()
            dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=row["pp"])
        parallel_state.initialize_model_parallel(1, row["pp"], chunks, create_gloo_process_groups=False)
        config = core_transformer_config_from_args(args)
        for degree in ("tensor_model", "expert_model", "expert_tensor", "context"):
            setattr(config, f"{degree}_parallel_size", 1)
        config.sequence_parallel = config.perform_initialization = False
        config.moe_grouped_gemm = False  # its kernels are not here; the weights are the same
        total = 0
        for chunk in range(chunks or 1):
            stage = chunk if chunks else None
            with torch.device("meta"):
                model = GPTModel(
                    config=config,
                    transformer_layer_spec=layers_of(args, config, stage),
                    vocab_size=row["vocab"],
                    max_sequence_length=args.max_position_embeddings,
                    pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
                    post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
                    share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
                    position_embedding_type=args.position_embedding_type,
                    rotary_percent=args.rotary_percent,
                    rotary_base=args.rotary_base,
                    rope_scaling=args.use_rope_scaling,
                    vp_stage=stage,
                )
            total += sum(weight.numel() for weight in model.parameters())
        found.append(total)
    return found


def layers_of(args: Any, config: Any, stage: int | None) -> Any:
    if args.num_experts:
        return get_gpt_decoder_block_spec(
            config, use_transformer_engine=False, normalization=args.normalization, vp_stage=stage
        )
    return get_gpt_layer_local_spec(
        None, False, args.qk_layernorm, args.multi_latent_attention, normalization=args.normalization
    )


def record() -> None:
    """Names, types, choices and defaults of every flag, for tests that run without Megatron-LM."""
    import argparse

    parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    flags = {}
    for action in parser._actions:
        kind = "switch" if action.nargs == 0 else getattr(action.type, "__name__", "str")
        for flag in action.option_strings:
            flags[flag] = {
                "type": kind,
                **({"nargs": str(action.nargs)} if action.nargs not in (None, 0) else {}),
                **({"choices": sorted(map(str, action.choices))} if action.choices else {}),
                "default": action.default if isinstance(action.default, int | float | str | bool) else None,
            }
    RECORD.write_text(json.dumps(dict(sorted(flags.items())), indent=0) + "\n")


def main() -> None:
    expected = json.loads((CELLS / "expected.json").read_text())
    record()
    results: dict[str, Any] = {}
    known: dict[tuple[str, str, int], list[int]] = {}
    for cell, row in expected.items():
        if row["framework"] != "megatron" or "refused" in row:
            continue
        try:
            args = parsed(cell, row)
            config = core_transformer_config_from_args(args)
            found = {name: repr(getattr(config, name, None)) for name in FIELDS}
            found |= {name: repr(getattr(args, name)) for name in ARGUMENTS}
            results[cell] = {"accepted": True, "fields": found}
            if not row["latent"]:  # multi-latent attention needs Transformer Engine
                # Cut alike and without its degrees, a model is built once.
                built = row["model"], str(args.pipeline_model_parallel_layout), row["pp"]
                stages = known.get(built) or known.setdefault(built, counts(args, row))
                results[cell]["stages"] = stages
        except BaseException as error:  # a parser exits, an assertion is its way to refuse
            results[cell] = {"accepted": False, "error": f"{type(error).__name__}: {error}"[:500]}
    (CELLS / "megatron.json").write_text(json.dumps(results, indent=1))


main()
