"""Files of checkpoint tiers: what they may not say."""

from pathlib import Path

import pytest

from tangram_sim.errors import BadInputError
from tangram_sim.reliability.checkpointing import load_checkpointing


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("checkpoint: [{block_s: 1}]\nrecovery: {warmup_steps: 1.0e+308}\n", "recovery: warmup_s comes to"),
        ("checkpoint: [{block_bytes_per_s: 1.0e-308}]\n", r"checkpoint\.0: block_s comes to inf s"),
        ("checkpoint: [{block_s: 1}, {block_s: 1, load_s: 2.0e+12}]\n", r"checkpoint\.1: load_s"),
        ("checkpoint: [{block_s: 1, every: 1e300 steps}]\n", r"checkpoint\.0: period_s"),
    ],
)
def test_ages_are_no_seconds_of_a_checkpoint(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "checkpoint.yaml").write_text(text)
    with pytest.raises(BadInputError, match=said):
        load_checkpointing(tmp_path / "checkpoint.yaml", 1, 100.0, 1.0, 10.0)


@pytest.mark.parametrize(
    ("tiers", "said"),
    [
        (
            "[{name: disk, block_s: 1}, {block_s: 2}, {name: disk, block_s: 3}]",
            "checkpoint.2: a second tier .*'disk'",
        ),
        ("[" + ", ".join(["{block_s: 1}"] * 17) + "]", "at most 16 items"),
    ],
)
def test_tiers_have_names_of_their_own_and_are_few(tmp_path: Path, tiers: str, said: str) -> None:
    (tmp_path / "checkpoint.yaml").write_text(f"checkpoint: {tiers}\n")
    with pytest.raises(BadInputError, match=said):
        load_checkpointing(tmp_path / "checkpoint.yaml", 1, 100.0, 1.0, 10.0)
