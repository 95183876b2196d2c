"""Numbers as YAML writes them: what it takes for text and a model file means as a number."""

from pathlib import Path

import pytest

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb.models import load_model


def test_yaml_s_text_for_a_power_of_ten_is_a_number(tmp_path: Path) -> None:
    """A config.json copied into YAML has `1e-06`, which YAML takes for text; other text stays refused."""
    path = tmp_path / "tiny.yaml"
    facts = "model_type: llama\nhidden_size: 64\nnum_hidden_layers: 2\nnum_attention_heads: 4\n"
    facts += "intermediate_size: 128\nvocab_size: 100\n"
    path.write_text(facts + "rms_norm_eps: 1e-06\nrope_theta: 5e5\n")
    model = load_model(str(path))
    assert (model.norm_epsilon, model.rotary_base) == (1e-6, 5e5)
    for value in ("tiny", "1e999", "1e-999"):
        path.write_text(f"{facts}rms_norm_eps: {value}\n")
        with pytest.raises(BadInputError, match="rms_norm_eps"):
            load_model(str(path))
