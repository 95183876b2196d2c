"""Nemotron-H and Nemotron 3: Mamba-2 mixers, a few attention layers, feed-forwards or latent experts.

The file's pattern has a letter for each sublayer (M mixer, * attention, - feed-forward, E experts). A mixer
or attention and the feed-forward after it are one block here; without one, its feed-forward has width 0.
"""

from tangram_sim.hwdb.families.config import Config
from tangram_sim.models import Attention, Block, Experts, FeedForward, Model

# Keys whose products take as long as Mamba-2's chunked scan does per token: half a chunk inside it, and the
# state read and written once (Dao & Gu, arXiv:2405.21060, section 6).
CHUNK = 128


def nemotron_h(config: Config) -> Model:
    """A stack of Mamba-2 mixers with some attention layers; feed-forwards are dense or latent experts."""
    hidden = config.count("hidden_size", 4096)
    mixers = {"M": _mamba(config, hidden), "*": _attention(config)}
    none = FeedForward(0, gated=False)
    parts: dict[str, FeedForward | Experts] = {}
    blocks: list[Block] = []
    pattern = _pattern(config)
    for place, letter in enumerate(pattern):
        if letter in mixers:
            follows = pattern[place + 1 : place + 2]
            if follows in ("-", "E"):
                if follows not in parts:
                    parts[follows] = _experts(config, hidden) if follows == "E" else _dense(config)
                blocks.append(Block(mixers[letter], parts[follows]))
            else:
                blocks.append(Block(mixers[letter], none, norms=1))
        elif place == 0 or pattern[place - 1] not in mixers:
            raise config.error("hybrid_override_pattern", "a mixer (M or *) in front of each - and E")
    return config.decoder("nemotron_h", hidden, blocks, vocab=131072, max_seq=8192)


def _pattern(config: Config) -> str:
    """One letter for each sublayer; by default mixers alternate with feed-forwards or experts."""
    stated = config.facts.get("hybrid_override_pattern")
    layers = config.layers("num_hidden_layers", 52)
    if stated is None:
        return (
            ("M-" * layers)[:layers] if "n_routed_experts" not in config.facts else ("ME" * layers)[:layers]
        )
    if not isinstance(stated, str) or len(stated) != layers or set(stated) - set("M*-E"):
        raise config.error("hybrid_override_pattern", f"a text of {layers} letters, each M, *, - or E")
    return stated


def _mamba(config: Config, hidden: int) -> Attention:
    """A Mamba-2 mixer as attention: C and B are queries and keys of each group, x the values, z the gate."""
    groups, state = config.count("n_groups", 8), config.count("ssm_state_size", 128)
    heads, width = config.count("mamba_num_heads", 128), config.count("mamba_head_dim", 64)
    if heads * width % groups:
        raise config.error("mamba_num_heads", f"heads x mamba_head_dim a multiple of the {groups} n_groups")
    inner = heads * width
    convolved = inner + 2 * groups * state
    # The step size of each head and its bias, decay and skip; a short convolution with biases; a norm.
    small = heads * (hidden + 3) + (config.count("conv_kernel", 4) + 1) * convolved + inner
    return Attention(
        heads=groups,
        kv_heads=groups,
        head_dim=state,
        value_dim=inner // groups,
        window=CHUNK // 2 + 2 * state,
        norm_parameters=small,
        output_gate=True,
        linear=True,
    )


def _attention(config: Config) -> Attention:
    heads = config.count("num_attention_heads", 32)
    dim = config.count("head_dim", 128, also=("attention_head_dim",))
    return Attention(heads, config.kv_heads(heads, 8), dim, dim)


def _dense(config: Config) -> FeedForward:
    return FeedForward(config.count("intermediate_size", 21504), gated=False)


def _experts(config: Config, hidden: int) -> Experts:
    """Experts with squared ReLU, in a latent space where the file states its size.

    Latent experts of width w have as many elements and products as experts of width w x latent / hidden on
    the hidden size; the projections to and from the latent space are counted with the shared expert.
    """
    experts, width = config.count("n_routed_experts", 128), config.count("moe_intermediate_size", 1856)
    latent = config.count("moe_latent_size", 0, null=0, least=0)
    if latent and width * latent % hidden:
        raise config.error("moe_latent_size", f"a size whose product with {width} is a multiple of {hidden}")
    return Experts(
        experts,
        config.active("num_experts_per_tok", 6, experts),
        width * latent // hidden if latent else width,
        gated=False,
        shared_width=config.count("moe_shared_expert_intermediate_size", 3712, least=0) + latent,
        router_bias=True,
        sent_width=latent,
    )
