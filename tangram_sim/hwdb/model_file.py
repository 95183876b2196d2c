"""model.yaml -> Model: a model written down layer by layer, for what no config.json describes.

    name: moe-demo            # optional, else the file's name
    hidden: 1024
    vocab: 32000
    tied: true                # input embedding and head share one matrix; default false
    positions: 0              # rows of a learned position table; 0 = rotary or none
    max_seq: 1024             # longest sequence; default: positions
    norm: layernorm           # or rmsnorm (default), of every norm in the model
    layers:
      - count: 2              # default 1
        attention: {heads: 16, kv_heads: 16}
        feed_forward: {width: 8192, gated: false}
      - repeat: 7             # a pattern: these layers, seven times over
        layers:
          - attention: {heads: 16}
            feed_forward: {width: 8192, gated: false}
          - attention: {heads: 16}
            experts: {count: 16, active: 2, width: 8192, gated: false}

Every layer has `attention` and either `feed_forward` or `experts`, and may set `norms` (2) and
`parallel` (false). Further keys: `attention` takes head_dim (hidden / heads), value_dim (head_dim),
window (0 = whole sequence), causal (true), qkv_bias, out_bias, qk_norm (false) and
`latent: {kv_rank, rope_dim, query_rank}` for multi-head latent attention; `feed_forward` takes gated
(true), bias (false); `experts` takes gated, bias, shared_width, router_bias, shared_gate. The model takes
embedding_dim, token_types, embedding_norm, final_norm, head_parameters, masked_lm, rotary_base, norm_epsilon
and source.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from tangram_sim.errors import BadInputError
from tangram_sim.file_parts import Name
from tangram_sim.hwdb.families.config import LARGEST_SIZE, MOST_LAYERS, shared, shown
from tangram_sim.models import Attention, Block, Experts, FeedForward, Model

Size = Annotated[int, Field(gt=0, le=LARGEST_SIZE)]
SizeOrZero = Annotated[int, Field(ge=0, le=LARGEST_SIZE)]
Count = Annotated[int, Field(gt=0, le=MOST_LAYERS)]


class _Section(BaseModel):
    """A part of the file; unknown keys and loosely typed values are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class LatentSection(_Section):
    """Bottlenecks of multi-head latent attention."""

    kv_rank: Size
    rope_dim: Size
    query_rank: SizeOrZero = 0


class AttentionSection(_Section):
    """Attention of a layer; `head_dim` includes the rotary part under `latent`."""

    heads: Size
    kv_heads: Size | None = None
    head_dim: Size | None = None
    value_dim: Size | None = None
    window: SizeOrZero = 0
    causal: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    latent: LatentSection | None = None


class FeedForwardSection(_Section):
    """A dense feed-forward."""

    width: Size
    gated: bool = True
    bias: bool = False


class ExpertsSection(_Section):
    """A mixture of experts."""

    count: Size
    active: Size
    width: Size
    gated: bool = True
    bias: bool = False
    shared_width: SizeOrZero = 0
    router_bias: bool = False
    shared_gate: bool = False


class LayerSection(_Section):
    """`count` equal layers."""

    count: Count = 1
    attention: AttentionSection
    feed_forward: FeedForwardSection | None = None
    experts: ExpertsSection | None = None
    norms: Annotated[int, Field(ge=0, le=8)] = 2
    parallel: bool = False


class PatternSection(_Section):
    """The same layers `repeat` times."""

    repeat: Count
    layers: Annotated[list[LayerSection], Field(min_length=1)]


def _kind(entry: object) -> str:
    return "pattern" if isinstance(entry, dict) and "repeat" in entry else "layer"


Entry = Annotated[
    Annotated[LayerSection, Tag("layer")] | Annotated[PatternSection, Tag("pattern")], Discriminator(_kind)
]


class ModelSection(_Section):
    """All keys of a model.yaml."""

    name: Annotated[Name, Field(min_length=1)] | None = None
    hidden: Size
    vocab: Size
    layers: Annotated[list[Entry], Field(min_length=1)]
    tied: bool = False
    positions: SizeOrZero = 0
    max_seq: SizeOrZero = 0
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    embedding_dim: SizeOrZero = 0
    token_types: SizeOrZero = 0
    embedding_norm: bool = False
    final_norm: bool = True
    head_parameters: SizeOrZero = 0
    masked_lm: bool = False
    rotary_base: Annotated[float, Field(ge=0, lt=1e12)] = 0.0
    norm_epsilon: Annotated[float, Field(ge=0, lt=1)] = 0.0
    source: str = ""
    aliases: list[str] = []
    published_parameters: Annotated[int, Field(gt=0)] | None = None
    published_active_parameters: Annotated[int, Field(gt=0)] | None = None
    published_source: str = ""


_SECTIONS: dict[str, type[_Section]] = {
    "attention": AttentionSection,
    "latent": LatentSection,
    "feed_forward": FeedForwardSection,
    "experts": ExpertsSection,
    "layer": LayerSection,
    "pattern": PatternSection,
}


def _message(where: str, error: ValidationError) -> str:
    """The first problem of a file: its place, the value found, the value expected."""
    # A misspelt key is also a missing one: the spelling is what the person can mend.
    first = min(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")
    steps = first["loc"]
    place = ""
    for step in steps:
        if isinstance(step, int):
            place += f"[{step}]"
        elif step not in ("layer", "pattern"):  # tags of the union, no keys of the file
            place += f".{step}" if place else step
    if first["type"] == "missing":
        return f"{where}: {place} is missing"
    if first["type"] == "extra_forbidden":
        parents = [step for step in steps[:-1] if isinstance(step, str)]
        section = _SECTIONS.get(parents[-1] if parents else "", LayerSection if parents else ModelSection)
        return f"{where}: {place} is not a known key here; known: {', '.join(section.model_fields)}"
    given = f"{where}: {place or 'the file'} is {shown(first['input'])}"
    if first["type"] == "model_type":
        return f"{given}; expected keys with values"
    if first["type"] == "too_short":
        return f"{given}; expected at least one entry"
    expected = first["msg"].replace("Input should be", "expected").replace("valid integer", "whole number")
    return f"{given}; {expected}"


def _attention(section: AttentionSection, hidden: int, where: str) -> Attention:
    heads, latent = section.heads, section.latent
    kv_heads = section.kv_heads or heads
    if section.head_dim is None and hidden % heads:
        raise BadInputError(
            f"{where}.heads is {heads}, which does not divide hidden, {hidden}; "
            f"expected a divisor of {hidden}, or state head_dim"
        )
    if heads % kv_heads or (latent and kv_heads != heads):
        expected = f"{heads}, as latent attention has it" if latent else f"a divisor of {heads}"
        raise BadInputError(f"{where}.kv_heads is {kv_heads} with {heads} heads; expected {expected}")
    head_dim = section.head_dim or hidden // heads
    if latent and latent.rope_dim > head_dim:
        raise BadInputError(
            f"{where}.latent.rope_dim is {latent.rope_dim}; expected at most head_dim, {head_dim}, "
            "which includes the rotary part"
        )
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=section.value_dim or head_dim,
        query_rank=latent.query_rank if latent else 0,
        kv_rank=latent.kv_rank if latent else 0,
        rope_dim=latent.rope_dim if latent else 0,
        window=section.window,
        causal=section.causal,
        qkv_bias=section.qkv_bias,
        out_bias=section.out_bias,
        norm_parameters=2 * head_dim if section.qk_norm else 0,
    )


def _part(layer: LayerSection, where: str) -> FeedForward | Experts:
    match layer.feed_forward, layer.experts:
        case FeedForwardSection() as dense, None:
            return FeedForward(**dense.model_dump())
        case None, ExpertsSection() as sparse if sparse.active > sparse.count:
            raise BadInputError(
                f"{where}.experts.active is {sparse.active}; expected a whole number from 1 to {sparse.count}"
            )
        case None, ExpertsSection() as sparse:
            facts = sparse.model_dump()
            return Experts(experts=facts.pop("count"), **facts)
        case _:
            raise BadInputError(f"{where}: expected either feed_forward or experts, one of the two")


def _block(layer: LayerSection, model: ModelSection, where: str) -> Block:
    return Block(
        attention=_attention(layer.attention, model.hidden, f"{where}.attention"),
        feed_forward=_part(layer, where),
        norms=layer.norms,
        norm_bias=model.norm == "layernorm",
        parallel=layer.parallel,
    )


def _layers(model: ModelSection, where: str) -> Iterator[tuple[int, list[Block]]]:
    """(number of repetitions, blocks) of every entry, in order."""
    for index, entry in enumerate(model.layers):
        place = f"{where}: layers[{index}]"
        if isinstance(entry, LayerSection):
            yield entry.count, [_block(entry, model, place)]
            continue
        pattern: list[Block] = []
        for inner, layer in enumerate(entry.layers):
            pattern += [_block(layer, model, f"{place}.layers[{inner}]")] * layer.count
        yield entry.repeat, pattern


def from_model_file(facts: Any, where: str, name: str) -> Model:
    """The model that the content of a model.yaml describes; `name` is used where the file has none.

    Raises BadInputError naming file and key.
    """
    if not isinstance(facts, dict):
        raise BadInputError(f"{where}: expected keys such as hidden, vocab and layers")
    try:
        model = ModelSection.model_validate(facts)
    except ValidationError as error:
        raise BadInputError(_message(where, error)) from None
    entries = list(_layers(model, where))
    total = sum(times * len(pattern) for times, pattern in entries)
    if total > MOST_LAYERS:
        raise BadInputError(f"{where}: layers add up to {total}; expected at most {MOST_LAYERS}")
    if model.embedding_dim > 0 and model.embedding_dim == model.hidden:
        model = model.model_copy(update={"embedding_dim": 0})
    return Model(
        name=model.name or name,
        family="model file",
        hidden=model.hidden,
        vocab=model.vocab,
        blocks=shared([block for times, pattern in entries for block in pattern * times]),
        tied=model.tied,
        positions=model.positions,
        max_seq=model.max_seq or model.positions,
        embedding_dim=model.embedding_dim,
        token_types=model.token_types,
        embedding_norm=model.embedding_norm,
        final_norm=model.final_norm,
        head_parameters=model.head_parameters,
        masked_lm=model.masked_lm,
        rotary_base=model.rotary_base,
        norm_epsilon=model.norm_epsilon,
        source=model.source or where,
    )
