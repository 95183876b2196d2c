"""Amounts as people write and read them."""

import pytest

from tangram_sim.errors import BadInputError
from tangram_sim.units import amount_of, percent, show_amount, show_span
from tests.commands import tangram


@pytest.mark.parametrize(
    ("text", "count"),
    [("200B", 2e11), ("1.5t", 1.5e12), (" 300M ", 3e8), ("20k", 2e4), ("1e12", 1e12), ("7", 7.0)],
)
def test_an_amount_has_a_suffix_or_none(text: str, count: float) -> None:
    assert amount_of(text) == pytest.approx(count)


@pytest.mark.parametrize("text", ["", "B", "200 billions", "2Q", "two"])
def test_what_is_no_amount_is_refused_with_what_to_type(text: str) -> None:
    with pytest.raises(BadInputError, match="200B or 2e11"):
        amount_of(text)


def test_an_amount_that_is_shown_is_the_one_given() -> None:
    assert show_amount(amount_of("200B")) == "200 billion"


def test_the_command_reads_amounts_of_tokens() -> None:
    for verb in ("what-if", "purchase"):
        wrong = tangram(verb, "gpt3-1.3b", "T4x4:1", "--tokens", "200Q")
        assert wrong.code == 2 and "--tokens: '200Q' is no amount" in wrong.err
    negative = tangram("what-if", "gpt3-1.3b", "T4x4:1", "--tokens=-200B")
    assert negative.code == 2 and "--tokens -2e+11: give tokens, above zero" in negative.err


@pytest.mark.parametrize(
    ("share", "digits", "signed", "shown"),
    [
        (0.4449, 1, False, "44.5 %"),
        (0.03, 0, True, "+3 %"),
        (-0.741, 1, True, "-74.1 %"),
        (0, 0, False, "0 %"),
    ],
)
def test_a_share_is_shown_in_percent_with_a_blank(share, digits, signed, shown):
    assert percent(share, digits, signed=signed) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (7_602_154.0, "88 days"),
        (11_000.0, "3.06 hours"),
        (172_800.0, "2 days"),
        (7_199.0, "7199 s"),
        (60.0, "60 s"),
    ],
)
def test_a_long_time_is_said_in_hours_or_days(seconds, shown):
    assert show_span(seconds) == shown
