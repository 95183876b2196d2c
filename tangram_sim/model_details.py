"""Details of models that a training framework must be told, and that no cost depends on. No I/O."""

from dataclasses import dataclass
from typing import Any

RopeScaling = tuple[tuple[str, float | str | bool], ...]


@dataclass(frozen=True, slots=True)
class Details:
    """How a model computes what its sizes leave open: rotary embedding, activation, router, attention.

    Defaults stand for a plain decoder: no scaling of positions, no router, SiLU behind gates.
    """

    rotary_share: float = 1.0  # of a head's dimensions that are rotated
    local_rotary_base: float = 0.0  # of layers with a window, where theirs differs (Gemma 3)
    rope_scaling: RopeScaling = ()  # pairs of key and value as in config.json; `type` names the method
    rope_free_every: int = 0  # every n-th layer has no rotary embedding (Llama 4), 0 = none
    activation: str = "silu"  # as config.json spells it
    activation_limit: float = 0.0  # clamps gate and input (gpt-oss), 0 = no clamp
    router_score: str = ""  # softmax or sigmoid; empty without experts
    router_renormalised: bool = True  # weights of the chosen experts sum to one
    router_groups: int = 1  # groups of experts of which `router_groups_kept` are looked at (DeepSeek)
    router_groups_kept: int = 1
    router_scale: float = 1.0  # factor on the weights of the chosen experts
    router_correction: bool = False  # a bias per expert that balances loads and is not trained by gradients
    auxiliary_loss: float = 0.0  # coefficient of the load-balancing loss
    auxiliary_loss_by_sequence: bool = False
    sinks: bool = False  # a learned logit per head in the softmax of attention
    chunked: bool = False  # windows are chunks that do not slide (Llama 4)
    query_key_l2_norm: bool = False  # queries and keys are normalised without weights (Llama 4)
    zero_centred_norms: bool = False  # norms multiply by one plus their weight
    predicted_tokens: int = 0  # layers of multi-token prediction in the checkpoint; no part of the plan
    peculiarities: tuple[str, ...] = ()  # what else it computes that its sizes do not show, in words

    def scaling(self, key: str, default: float = 0.0) -> float:
        """A number of the rotary scaling, or `default` where the file does not state it."""
        return float(dict(self.rope_scaling).get(key, default))

    @property
    def scaling_type(self) -> str:
        """The method of the rotary scaling: llama3, yarn, linear ...; empty without one."""
        return str(dict(self.rope_scaling).get("type", ""))

    def stated(self) -> dict[str, Any]:
        """The fields that differ from their defaults, with values as JSON holds them."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            name: [list(pair) for pair in value] if name == "rope_scaling" else _listed(value)
            for name, value in values.items()
            if value != getattr(NO_DETAILS, name)
        }


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


NO_DETAILS = Details()
