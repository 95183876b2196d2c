"""Reading a config.json: typed look-ups whose errors name the file, the key and the expected value."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb.families.details import details_of
from tangram_sim.models import Block, Model

LARGEST_SIZE = 10**9  # far above any real size; keeps products inside 64-bit integers
MOST_LAYERS = 10_000
# Of Llama and its kin; GPT-2 and Falcon; BERT, GPT-NeoX, Phi and Cohere; StarCoder2; Nemotron.
_NORM_EPSILON = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps")
_LARGEST_BASE = 1e12  # of a rotary embedding
GPTJ_ROTARY_BASE = 10000.0  # a constant of its implementation, in no file
_POWER = re.compile(r"\d+(\.\d*)?[eE][-+]?\d{1,3}")
_TELLING = {"tie_word_embeddings"}  # flags that change the size of a model when they are off, too
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Config:
    """The content of one config.json and its source.

    Every look-up raises BadInputError. A missing key takes the default given; `null` is an error unless the
    look-up defines its meaning.
    """

    facts: Mapping[str, Any]
    where: str  # file, and section inside it
    name: str
    taken: dict[str, str] = field(default_factory=dict)  # keys that were missing, and what stood in for them

    def error(self, key: str, expected: str) -> BadInputError:
        """The error for an impossible value of `key`."""
        given = shown(self.facts[key]) if key in self.facts else "missing"
        return BadInputError(f"{self.where}: {key} is {given}; expected {expected}")

    def _present(self, key: str, also: tuple[str, ...]) -> str:
        """The spelling of a key that the file uses; `key` if it uses none."""
        return next((name for name in (key, *also) if name in self.facts), key)

    def count(
        self,
        key: str,
        default: int | None,
        *,
        null: int | None = None,
        least: int = 1,
        most: int = LARGEST_SIZE,
        also: tuple[str, ...] = (),
    ) -> int:
        """A whole number of at least `least`; `also` lists other spellings of the key."""
        key = self._present(key, also)
        kind = "a positive whole number" if least == 1 else f"a whole number of at least {least}"
        if key not in self.facts:
            if default is None:
                raise self.error(key, f"{kind}; this family has no default for it")
            if default:  # none of something is nothing taken
                self.taken[key] = f"{default}"
            return default
        value = self.facts[key]
        if value is None and null is not None:
            return null
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(key, kind)
        if value > most:
            raise self.error(key, f"at most {most}")
        return value

    def _by_default(self, key: str) -> str:
        return "" if key in self.facts else " by default"

    def layers(self, key: str, usual: int, also: tuple[str, ...] = ()) -> int:
        """The number of blocks. `usual` is a typical value of the family, as an example in errors.

        There is no default: depth distinguishes a family's models, and everything else depends on it.
        """
        if self._present(key, also) not in self.facts:
            raise self.error(key, f"the number of layers (a usual member of this family has {usual})")
        return self.count(key, None, most=MOST_LAYERS, also=also)

    def flag(self, key: str, default: bool) -> bool:
        """A boolean key, `default` where it is missing."""
        if key not in self.facts and (default or key in _TELLING):
            self.taken[key] = f"{default}".lower()
        value = self.facts.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def head_dim(self, hidden: int, heads: int, key: str = "num_attention_heads") -> int:
        """Size of one head where the family derives it: `head_dim` if stated, else hidden / heads."""
        stated = self.count("head_dim", 0, null=0)
        if not stated and hidden % heads:
            raise BadInputError(
                f"{self.where}: {key} is {heads}{self._by_default(key)}, which does not divide the hidden "
                f"size {hidden}; expected a divisor of {hidden}, or state head_dim"
            )
        return stated or hidden // heads

    def kv_heads(self, heads: int, default: int | None = None, key: str = "num_key_value_heads") -> int:
        """Key/value heads; missing without a default, or null, means as many as query heads."""
        value = self.count(key, heads if default is None else default, null=heads)
        if heads % value:
            raise BadInputError(
                f"{self.where}: {key} is {value}{self._by_default(key)}, which does not divide the "
                f"{heads} attention heads; "
                f"expected a divisor of {heads}"
            )
        return value

    def active(self, key: str, default: int | None, experts: int) -> int:
        """Experts per token, at most `experts`."""
        value = self.count(key, default)
        if value > experts:
            raise BadInputError(
                f"{self.where}: {key} is {value}{self._by_default(key)}, but the model has {experts} "
                f"experts; expected a whole number from 1 to {experts}"
            )
        return value

    def windows(self, layers: int, window: int, sliding: list[bool]) -> list[int]:
        """The attention window of every layer: `layer_types` if stated, else `window` where `sliding`.

        0 is the whole sequence. `sliding` has one entry per layer.
        """
        stated = self.facts.get("layer_types")
        if stated is not None:
            if not isinstance(stated, list) or len(stated) != layers:
                raise self.error("layer_types", f"a list of {layers} entries, one per layer")
            for kind in stated:
                if kind not in (FULL, SLIDING):
                    raise self.error("layer_types", f"entries {FULL!r} or {SLIDING!r}, not {shown(kind)}")
            sliding = [kind == SLIDING for kind in stated]
        return [window if slides else 0 for slides in sliding]

    def model(self, family: str, hidden: int, vocab: int, blocks: list[Block], **rest: Any) -> Model:
        """The model with these blocks; `source` is taken from the file where it states one."""
        source = self.facts.get("source", self.where)
        distinct = shared(blocks)
        return Model(
            name=self.name,
            family=family,
            hidden=hidden,
            vocab=vocab,
            blocks=distinct,
            source=source if isinstance(source, str) else self.where,
            rotary_base=self._rotary_base(),
            norm_epsilon=self._norm_epsilon(),
            details=details_of(self.facts, family, distinct, self.error),
            defaults=tuple(f"{key} {value}" for key, value in self.taken.items()),
            **rest,
        )

    def _rotary_base(self) -> float:
        """`rope_theta`, which newer files nest; 0 where the file does not have it."""
        nested = self.facts.get("rope_parameters")
        inner = nested.get("rope_theta") if isinstance(nested, dict) else None
        named = self.facts.get("rotary_emb_base", inner)  # of GPT-NeoX
        fixed = GPTJ_ROTARY_BASE if self.facts.get("model_type") == "gptj" else None
        value = _power_of_ten(self.facts.get("rope_theta", fixed if named is None else named))
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1 < value < _LARGEST_BASE:
            raise self.error("rope_theta", f"a number above 1 and below {_LARGEST_BASE:g}")
        return float(value)

    def _norm_epsilon(self) -> float:
        """Epsilon that norms add to the variance, under any family's key; 0 where the file has none."""
        for key in _NORM_EPSILON:
            value = _power_of_ten(self.facts.get(key))
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
                raise self.error(key, "a number above 0 and below 1")
            return float(value)
        return 0.0

    def decoder(
        self,
        family: str,
        hidden: int,
        blocks: list[Block],
        *,
        vocab: int,
        max_seq: int,
        tied: bool = False,
    ) -> Model:
        """A decoder whose file states vocabulary, tied embeddings and longest sequence under the usual keys.

        `vocab`, `max_seq` and `tied` are the defaults.
        """
        return self.model(
            family,
            hidden,
            self.count("vocab_size", vocab),
            blocks,
            tied=self.flag("tie_word_embeddings", tied),
            max_seq=self.count("max_position_embeddings", max_seq),
        )


def shown(value: object) -> str:
    """A value of a user's file as the file spells it, shortened."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _power_of_ten(value: Any) -> Any:
    """The number where YAML gives text: YAML reads `1.0e-06` as a number, but not JSON's `1e-06`."""
    return float(value) if isinstance(value, str) and _POWER.fullmatch(value) else value


def shared(blocks: list[Block]) -> tuple[Block, ...]:
    """`blocks` with equal blocks replaced by one shared object, which saves memory and comparisons."""
    seen: dict[Block, Block] = {}
    return tuple(seen.setdefault(block, block) for block in blocks)
