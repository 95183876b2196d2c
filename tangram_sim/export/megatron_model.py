"""A model as arguments of Megatron-LM (megatron/training/arguments.py, core_v0.16.1).

Its defaults are GPT's: layer norms with biases, learned positions, GELU, one matrix for embedding and output.
Every difference is written out, so that the trained model is the planned one.
`tangram_sim.planners.uniform.framework_models` lists what no flag can express.
"""

from itertools import groupby
from typing import Any

from tangram_sim.models import Experts, FeedForward, Model
from tangram_sim.planners.uniform.framework_models import attentions, feed_forwards, linear_biases

_UPDATE_RATE = (
    0.001  # of correction biases: what DeepSeek-V3 was trained with (arXiv:2412.19437, section 4.2)
)
_LARGEST_MULTIPLE = 128  # of the vocabulary: Megatron-LM's own default


def model_words(model: Model, tp: int = 1) -> tuple[dict[str, Any], list[str]]:
    """(arguments, notes on settings left to the user); an argument with value None is a switch."""
    words: dict[str, Any] = {"--num-layers": model.layers, "--hidden-size": model.hidden}
    words |= _attention(model)
    words |= _feed_forward(model)
    words |= _biases(model)
    words["--normalization"] = "LayerNorm" if model.blocks[-1].norm_bias else "RMSNorm"
    if model.norm_epsilon:
        words["--norm-epsilon"] = model.norm_epsilon
    if model.details.zero_centred_norms:
        words["--apply-layernorm-1p"] = None
    words |= _positions(model)
    if not model.tied:
        words["--untie-embeddings-and-output-weights"] = None
    vocabulary, notes = _vocabulary(model, tp)
    words |= vocabulary
    notes += _not_stated(model)
    if model.details.predicted_tokens:
        notes.append(
            f"the published model also predicts {model.details.predicted_tokens} tokens further ahead "
            "(`--mtp-num-layers`): the plan does not, and no flag asks for it"
        )
    return words, notes


def _attention(model: Model) -> dict[str, Any]:
    attention, details = attentions(model)[0], model.details
    words: dict[str, Any] = {"--num-attention-heads": attention.heads}
    if attention.kv_rank:
        words |= {
            "--multi-latent-attention": None,
            "--kv-lora-rank": attention.kv_rank,
            "--qk-head-dim": attention.head_dim - attention.rope_dim,
            "--qk-pos-emb-head-dim": attention.rope_dim,
            "--v-head-dim": attention.value_dim,
            "--qk-layernorm": None,  # of the latents, without which their norms are missing
        }
        if attention.query_rank:
            words["--q-lora-rank"] = attention.query_rank
    else:
        words["--kv-channels"] = attention.head_dim
        if attention.kv_heads != attention.heads:
            words |= {"--group-query-attention": None, "--num-query-groups": attention.kv_heads}
        if attention.norm_parameters == 2 * attention.head_dim and not details.sinks:
            words["--qk-layernorm"] = None
    if details.query_key_l2_norm:
        words["--qk-l2-norm"] = None
    if details.sinks:
        words["--softmax-type"] = "learnable"
    return words | _windows(model)


def _windows(model: Model) -> dict[str, Any]:
    """Flags for windowed attention: a window of W tokens looks W - 1 back; a list for some layers."""
    windows = [0 if block.attention.linear else block.attention.window for block in model.blocks]
    width = max(windows)
    if not width or model.blocks[0].attention.index_heads:
        return {}
    words = {"--window-size": f"{width - 1},0"}
    if not all(windows):
        words["--window-attn-skip-freq"] = _pattern([int(window > 0) for window in windows])
    return words


def _feed_forward(model: Model) -> dict[str, Any]:
    dense, sparse = feed_forwards(model)
    words: dict[str, Any] = {"--ffn-hidden-size": (dense or sparse)[0].width}
    if sparse:
        words |= _experts(model, sparse[0])
        if dense:
            words["--moe-layer-freq"] = _pattern(
                [int(isinstance(block.feed_forward, Experts)) for block in model.blocks]
            )
    return words | _activation(model, (dense or sparse)[0])


def _activation(model: Model, part: FeedForward | Experts) -> dict[str, Any]:
    details = model.details
    if part.gated and details.activation_limit:
        return {
            "--quick-geglu": None,
            "--glu-linear-offset": 1.0,
            "--activation-func-clamp-value": details.activation_limit,
        }
    if part.gated:
        return {"--swiglu": None}
    return {"--squared-relu": None} if details.activation == "relu2" else {}


def _experts(model: Model, experts: Experts) -> dict[str, Any]:
    details = model.details
    words: dict[str, Any] = {
        "--num-experts": experts.experts,
        "--moe-router-topk": experts.active,
        "--moe-ffn-hidden-size": experts.width,
        "--moe-grouped-gemm": None,
        "--moe-token-dispatcher-type": "alltoall",
        "--moe-router-dtype": "fp32",
    }
    if experts.shared_width:
        words["--moe-shared-expert-intermediate-size"] = experts.shared_width
    if experts.shared_gate:
        words["--moe-shared-expert-gate"] = None
    score = details.router_score or "softmax"
    words["--moe-router-score-function"] = score
    if score == "softmax" and (experts.active == 1 or not details.router_renormalised):
        words["--moe-router-pre-softmax"] = None
    if details.router_correction:
        words |= {
            "--moe-router-enable-expert-bias": None,
            "--moe-router-bias-update-rate": _UPDATE_RATE,
        }
    if details.router_groups > 1:
        words |= {
            "--moe-router-num-groups": details.router_groups,
            "--moe-router-group-topk": details.router_groups_kept,
        }
    if details.router_scale != 1.0:
        words["--moe-router-topk-scaling-factor"] = details.router_scale
    if details.auxiliary_loss:
        by_sequence = details.auxiliary_loss_by_sequence
        words |= {
            "--moe-router-load-balancing-type": "seq_aux_loss" if by_sequence else "aux_loss",
            "--moe-aux-loss-coeff": details.auxiliary_loss,
        }
    else:
        words["--moe-router-load-balancing-type"] = "none"
    return words


def _pattern(kinds: list[int]) -> str:
    """A list with one kind per layer, as Megatron-LM evaluates it: `([0]*3+[1]*58)`."""
    runs = [(kind, len(list(same))) for kind, same in groupby(kinds)]
    return f"({'+'.join(f'[{kind}]*{count}' for kind, count in runs)})"


def _biases(model: Model) -> dict[str, Any]:
    """Flags for biases of linear layers: all, none, or those of queries, keys and values only."""
    given = linear_biases(model)
    if given == {(True, True, True)}:
        return {}
    return {"--disable-bias-linear": None} | (
        {"--add-qkv-bias": None} if given == {(True, False, False)} else {}
    )


def _positions(model: Model) -> dict[str, Any]:
    details = model.details
    if model.positions:
        return {"--position-embedding-type": "learned_absolute"}
    words: dict[str, Any] = {"--position-embedding-type": "rope"}
    if model.rotary_base:
        words["--rotary-base"] = round(model.rotary_base)
    if details.rotary_share != 1.0:
        words["--rotary-percent"] = details.rotary_share
    if details.rope_free_every:
        words["--no-rope-freq"] = details.rope_free_every
    method, factor = details.scaling_type, details.scaling("factor", 1.0)
    if model.blocks[0].attention.kv_rank:
        # Its own default is YaRN by a factor of 40, as DeepSeek's.
        words["--rope-type"] = "yarn" if method == "yarn" else "rope"
        if method != "yarn":
            words["--no-rope-fusion"] = None
        else:
            words |= {
                "--rotary-scaling-factor": factor,
                "--mscale": details.scaling("mscale", 1.0),
                "--mscale-all-dim": details.scaling("mscale_all_dim", 0.0),
            }
    elif method == "llama3":
        words |= {"--use-rope-scaling": None, "--rope-scaling-factor": factor}
    elif method == "linear":
        words["--rotary-seq-len-interpolation-factor"] = round(factor)
    return words


def _vocabulary(model: Model, tp: int) -> tuple[dict[str, Any], list[str]]:
    """(flags for the vocabulary size, notes): without padding if ranks can share it evenly."""
    multiple = _LARGEST_MULTIPLE
    while multiple > 1 and model.vocab % (multiple * tp):
        multiple //= 2
    words = {"--vocab-size": model.vocab, "--make-vocab-size-divisible-by": multiple}
    padded = -model.vocab % (multiple * tp)
    notes = [f"the vocabulary is padded by {padded} tokens that the plan does not count"] if padded else []
    return words, notes


def _not_stated(model: Model) -> list[str]:
    """A note on figures that the model's file leaves out, and Megatron-LM's defaults for them."""
    lacks = []
    if not (model.positions or model.rotary_base):
        lacks.append("the base of its rotary embedding (`rope_theta`; 10000, `--rotary-base`)")
    if not model.norm_epsilon:
        lacks.append("what its norms add to the variance (`rms_norm_eps`; 1e-5, `--norm-epsilon`)")
    if not lacks:
        return []
    return [f"its file does not say {' and '.join(lacks)}: Megatron-LM's own is in brackets, with its flag"]
