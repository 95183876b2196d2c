"""A post-training step: prompts, samples, lengths, updates, and the models that take part."""

from dataclasses import dataclass

from tangram_sim.errors import BadInputError
from tangram_sim.models import Model
from tangram_sim.post_training.lengths import ResponseLengths


@dataclass(frozen=True)
class PostTraining:
    """One step: `prompts` x `samples` sequences generated, scored and trained on in `updates` updates.

    `reference`: a frozen copy computes log-probabilities. `old_logprobs`: the trainer recomputes them (False:
    those of rollout are used). `critic`: a value model, trained like the policy. `reward_s`: seconds that a
    rule takes after the last response; `reward_model`: set where a model gives the reward. `generated_share`:
    sequences generated per sequence trained (dynamic sampling: above 1).
    """

    model: Model
    prompts: int
    samples: int
    prompt_tokens: float
    lengths: ResponseLengths
    updates: int = 1
    epochs: int = 1
    reference: bool = True
    old_logprobs: bool = True
    critic: Model | None = None
    reward_model: Model | None = None
    reward_s: float = 0.0
    dtype: str = "bf16"
    rollout_precision: str = "bf16"
    generated_share: float = 1.0

    def __post_init__(self) -> None:
        """Raise BadInputError for impossible values."""
        for name in ("prompts", "samples", "updates", "epochs"):
            value = getattr(self, name)
            if value < 1:
                raise BadInputError(f"`{name}={value}`: give a whole number, 1 or more")
        if self.prompt_tokens < 1:
            raise BadInputError(f"`prompt_tokens={self.prompt_tokens:g}`: give 1 token or more")
        if self.sequences * self.epochs < self.updates:
            raise BadInputError(
                f"{self.updates} updates: a step of {self.sequences} sequences x {self.epochs} epochs has "
                "fewer; give at most one update a sequence"
            )
        if self.generated_share < 1:
            raise BadInputError(f"share of generated sequences {self.generated_share:g}: give 1 or more")

    @property
    def sequences(self) -> int:
        """Number of sequences trained on in one step."""
        return self.prompts * self.samples

    @property
    def update_sequences(self) -> float:
        """Number of sequences in one optimizer update."""
        return self.sequences * self.epochs / self.updates

    @property
    def mean_tokens(self) -> float:
        """Mean tokens of a sequence, prompt and response."""
        return self.prompt_tokens + self.lengths.mean

    @property
    def trained_tokens(self) -> float:
        """Prompt and response tokens of one step."""
        return self.sequences * self.mean_tokens

    @property
    def attended_tokens(self) -> float:
        """Length of the sequence that a mean token belongs to: mean square over mean of the lengths."""
        square = self.lengths.mean_square + 2 * self.prompt_tokens * self.lengths.mean + self.prompt_tokens**2
        return square / self.mean_tokens


def updates_of(sequences: int, train_batch_sequences: int, epochs: int = 1) -> int:
    """Optimizer updates of a step. Raises BadInputError where one needs more sequences than there are."""
    if not 1 <= train_batch_sequences <= sequences * epochs:
        raise BadInputError(
            f"`train_batch_sequences={train_batch_sequences}`: give 1 to {sequences * epochs:,}, the "
            "sequences of a step times its epochs"
        )
    return round(epochs * sequences / train_batch_sequences)
