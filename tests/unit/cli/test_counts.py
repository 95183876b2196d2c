"""Sequence lengths and batches as people write them."""

import json

import pytest

from tests.commands import tangram


@pytest.mark.parametrize(("given", "meant"), [("8k", 8192), ("8K", 8192), ("8,192", 8192), ("8192", 8192)])
def test_lengths_are_read_as_people_write_them(given: str, meant: int) -> None:
    """8k is 8,192, as in the names of models with long contexts."""
    told = tangram("estimate", "gpt3-125m", "DGX-H100:1", "--seq", given, "--global-batch", "1k", "--json")
    job = json.loads(told.out)["job"]
    assert (job["seq"], job["global_batch"]) == (meant, 1024)


@pytest.mark.parametrize("given", ["k", "8q", "2.5k", "8kk", ""])
def test_what_is_no_length_is_refused_with_an_example(given: str) -> None:
    finished = tangram("estimate", "gpt3-125m", "DGX-H100:1", "--seq", given)
    assert finished.code == 2 and "e.g. 8192 or 8k" in " ".join(finished.err.replace("│", " ").split())
