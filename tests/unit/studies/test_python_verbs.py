"""Verbs of Python take names, files, nouns and results of each other, and say what else they were given."""

import json
from pathlib import Path

import pytest

import tangram_sim as ts

SMALL = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
JOB = ts.Job(global_batch=32, seq=1024)


def test_a_path_a_name_and_a_noun_are_one_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    by_path = ts.plan(tmp_path, "L40Sx4:1", JOB)
    by_name = ts.plan(str(tmp_path), ts.load_cluster("L40Sx4:1", ts.Hwdb.load()), JOB)
    assert by_path.step_s == by_name.step_s
    assert ts.simulate(by_path).step_s == pytest.approx(by_path.step_s, rel=1e-12)
    explained = ts.explain(by_path)
    assert explained.forecast.step_s == pytest.approx(by_path.step_s, rel=1e-12)
    assert ts.explain(by_path.forecast.plan).path == explained.path


def test_a_result_is_explained_with_the_hardware_data_that_it_rests_on(tmp_path: Path) -> None:
    (tmp_path / "efficiency").mkdir()
    (tmp_path / "efficiency" / "own.csv").write_text(
        "gpu,dtype,kernel,stack,version,parameter,value,sigma,n,source,date,note\n"
        "L40S,bf16,gemm,generic,,efficiency,0.2,0.1,0,assumed,,\n"
    )
    other = ts.Hwdb.load([tmp_path])
    found = ts.estimate("gpt3-1.3b", "L40Sx4:1", JOB, ts.Uniform(tp=4), hwdb=other)
    assert ts.explain(found, other).forecast.step_s == pytest.approx(found.step_s, rel=1e-9)
    with pytest.raises(ts.BadInputError, match="other hardware data"):
        ts.explain(found)


@pytest.mark.parametrize(("model", "cluster"), [(SMALL, "L40Sx4:1"), ("llama3-8b", 8), (None, "L40Sx4:1")])
def test_what_is_neither_name_nor_file_nor_noun_is_named(model: object, cluster: object) -> None:
    for verb in (ts.plan, ts.estimate):
        with pytest.raises(ts.BadInputError, match=r"cannot be read; give a name, a file or a ts\."):
            verb(model, cluster, JOB)  # type: ignore[arg-type]


def test_a_name_that_is_not_there_leads_to_those_that_are() -> None:
    with pytest.raises(AttributeError, match="there is CompareQuestion"):
        ts.compare  # noqa: B018 - it is the attribute that is looked for
    assert not hasattr(ts, "no_such_name")
