"""What more GPUs would do for a service: more never hurts, figures belong together, bad input is named."""

from pathlib import Path

import pytest

from tests.commands import tangram

FLEET = "gpus:\n  L40S: {price_per_hour: 0.9, available: 1}\n"


@pytest.fixture
def asked(tmp_path: Path) -> tuple[object, ...]:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    return (
        "serve",
        "what-if",
        "llama3-8b",
        "--fleet",
        file,
        "--workload",
        "800:200:0.6,300:40:0.4",
        "--rate",
        4,
    )


def test_more_gpus_serve_more_and_their_cost_is_told(asked: tuple[object, ...]) -> None:
    told = tangram(
        *asked, "--requests", 400, "--add", "L40S:1", "--add", "A100-SXM4-80GB:1@1.75", "--json"
    ).json
    now, twice, mixed = told["candidates"]
    assert now["good_rps"] < twice["good_rps"]
    assert now["good_rps"] < mixed["good_rps"]
    assert (twice["usd_per_hour"], mixed["usd_per_hour"]) == (pytest.approx(1.8), pytest.approx(2.65))
    for one in told["candidates"]:
        a_million = one["usd_per_hour"] / (one["good_output_tok_s"] * 3600) * 1e6
        assert one["usd_per_million_tokens"] == pytest.approx(a_million)
    gain = (twice["good_output_tok_s"] - now["good_output_tok_s"]) * 3600 / 0.9
    assert twice["more_tokens_per_usd"] == pytest.approx(gain)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--add", "L40S"), "give it like"),
        (("--add", "L40S:0"), "give it like"),
        (("--add", "L41S:2"), "unknown GPU"),
        (("--add", "H200:2"), "say what it costs"),
        (("--budget", 3), "leave it out"),
    ],
)
def test_bad_purchases_are_named(asked: tuple[object, ...], options: tuple[object, ...], words: str) -> None:
    shown = tangram(*asked, *options)
    assert (shown.code, words in shown.err) == (2, True), shown.err
