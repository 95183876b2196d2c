"""gpt-oss: experts with biases in every layer, attention sinks, sliding-window and full layers in turn."""

from tangram_sim.hwdb.families.config import Config
from tangram_sim.models import Attention, Block, Experts, Model


def gpt_oss(config: Config) -> Model:
    """gpt-oss-20b and -120b; a sink is one learned logit per head."""
    hidden, heads = config.count("hidden_size", 2880), config.count("num_attention_heads", 64)
    kv_heads, head_dim = config.kv_heads(heads, 8), config.count("head_dim", 64, null=0)
    head_dim = head_dim or config.head_dim(hidden, heads)
    layers, bias = config.layers("num_hidden_layers", 36), config.flag("attention_bias", True)
    experts = config.count("num_local_experts", 128, also=("num_experts",))
    part = Experts(
        experts=experts,
        active=config.active("num_experts_per_tok", 4, experts),
        width=config.count("intermediate_size", 2880),
        bias=True,
        router_bias=True,
    )
    sliding = [layer % 2 == 0 for layer in range(layers)]
    blocks = [
        Block(
            Attention(
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                value_dim=head_dim,
                window=window,
                qkv_bias=bias,
                out_bias=bias,
                norm_parameters=heads,
            ),
            part,
        )
        for window in config.windows(layers, config.count("sliding_window", 128, null=0), sliding)
    ]
    return config.decoder("gpt_oss", hidden, blocks, vocab=201088, max_seq=131072)
