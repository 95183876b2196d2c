"""What a report says in words: the choice, ties, flips, and figures no finer than they are known."""

import json
import math
import re
from dataclasses import replace
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.purchasing.catalogue import in_a_sentence
from tangram_sim.purchasing.sensitivity import Flip, Input, Sensitivity, Swing
from tangram_sim.reports.assumptions import in_words, keys_in_words
from tangram_sim.reports.charts import front, mattering, tornado
from tangram_sim.reports.page import chart, kept_together
from tangram_sim.reports.question import CHEAPEST, MOST_FOR_A_DOLLAR, PurchaseFigures, chosen
from tangram_sim.reports.rounding import dollars, rounded, with_interval
from tangram_sim.units import show_amount
from tests.unit.reports.test_report import HWDB, hangs_on, study

__all__ = ["hangs_on", "study"]  # fixtures

RATES = st.floats(1e-6, 1e15)


def said(markup: str) -> str:
    return unescape(re.sub(r"<[^>]+>", "", markup))


def gaining(study):
    """The study as if every purchase made the fleet faster, the later ones more and for less."""
    rows = [study.rows[0]]
    for place, row in enumerate(study.rows[1:], 1):
        speed = replace(row.throughput, **{
            name: getattr(row.throughput, name) * (1 + place / 4) for name in ("tokens_per_s", "low", "high")
        })  # fmt: skip
        rows.append(replace(row, throughput=speed, marginal_tokens_per_usd=1e6 * place))
    return replace(study, rows=tuple(rows))


def verdict_of(study, found) -> str:
    from tangram_sim.reports.purchases import what_if_report

    text = what_if_report(study, found, HWDB)
    return said(text[text.index('<p class="answer">') : text.index("<section>")])


class TestRounding:
    @given(RATES, st.floats(0.01, 0.9), st.floats(0.01, 3.0))
    def test_it_stays_well_inside_the_interval_and_shows_no_more_digits_than_that(self, value, below, above):
        low, high = value * (1 - below), value * (1 + above)
        shown = rounded(value, low, high)
        assert abs(shown - value) <= (high - low) / 40 + 1e-12 * value
        place = math.floor(math.log10((high - low) / 20))
        finest = 10.0 ** min(place, math.floor(math.log10(value)) - 1)
        assert shown / finest == pytest.approx(round(shown / finest), abs=1e-6)

    def test_examples(self):
        assert with_interval(351_645, 250_000, 502_000) == "350,000 (250,000 to 500,000)"
        assert with_interval(351_645, 351_645, 351_645) == "352,000"
        assert [show_amount(n) for n in (1e12, 2.5e9, 5e5)] == ["1 trillion", "2.5 billion", "500,000"]
        assert [dollars(531_234), dollars(1.234e7), dollars(0.0123)] == [
            "$531,000",
            "$12.3 million",
            "$0.0123",
        ]


class TestVerdict:
    def test_the_answer_says_what_how_long_for_how_much_and_how_sure(self, study, hangs_on):
        study = gaining(study)
        text = verdict_of(study, hangs_on)
        row = next(row for row in study.rows if text.startswith(row.name))
        assert "10 billion tokens in" in text and "e+" not in text
        assert f"for {dollars(row.usd_to_train)} (capital written off, energy and rent of that time; " in text
        assert f"the outlay is {dollars(row.bill.outlay_usd)})" in text
        assert re.search(r"hours \([\d.,]+ to [\d.,]+\)", text), "the interval goes with the time"

    def test_a_purchase_that_gains_nothing_is_no_answer(self, study, hangs_on):
        text = verdict_of(study, hangs_on)
        assert text.startswith(f"{study.rows[0].name} is all it takes: no purchase here is faster")
        assert "would be" not in text

    def test_another_measure_than_that_of_the_choice_is_named_before_order_and_flips(self, study, hangs_on):
        """Beside a fleet that is owned the choice gains most for a dollar; the rest is of all costs."""
        study = gaining(study)
        usual = verdict_of(study, hangs_on)
        mine = next(row for row in study.rows if usual.startswith(row.name))
        assert "gains most tokens for each dollar" in usual
        other = next(row for row in study.rows[1:] if row is not mine)
        rows = (*study.rows, replace(other, name="third"))
        text = verdict_of(replace(study, rows=rows), replace(hangs_on, best=other.name, second="third"))
        assert f"By the cost of a token, fleet and purchase together, {other.name} is first" in text
        same = verdict_of(study, replace(hangs_on, best=mine.name, second=other.name))
        assert "fleet and purchase together" not in same

    def test_paper_has_no_hints_on_pressing_and_pointing(self, study, hangs_on):
        from tangram_sim.reports.purchases import what_if_report

        text = what_if_report(study, hangs_on, HWDB)
        hint = re.search(r'<span class="screen">(.*?)</span>', text)
        assert hint is not None and "all columns" in hint[1] and "Point at a figure" in hint[1]
        assert re.search(r"@media print \{.*\.screen \{ display: none; \}", text, re.DOTALL)

    def test_assumptions_are_named_in_words(self):
        assert [in_words(name) for name in (
            "nodes.DGX-B200.capital_usd", "economics.pue", "gemm efficiency of A100-SXM4-40GB in fp16",
            "stack time_scale of any", "dispatch seconds of any", "something else",
        )] == [
            "price of one DGX-B200", "power drawn over power of nodes (PUE)",
            "share of the peak of matrix products, A100-SXM4-40GB in fp16", "what software adds to kernels",
            "host's time to launch a kernel", "something else",
        ]  # fmt: skip

    def test_a_tie_is_called_one_and_a_sure_order_is_not(self, study, hangs_on):
        study = gaining(study)
        best = next(row for row in study.rows if row.name == hangs_on.best)
        twin = replace(best, name="twin", usd_per_million_tokens=best.usd_per_million_tokens * 1.001)
        tied = verdict_of(replace(study, rows=(*study.rows, twin)), replace(hangs_on, second="twin"))
        assert "A tie between the two best by cost: twin costs" in tied
        charges = tuple(
            replace(charge, usd_per_hour=charge.usd_per_hour * 50) for charge in best.bill.charges
        )
        dear = replace(twin, bill=replace(best.bill, charges=charges))
        sure = verdict_of(replace(study, rows=(*study.rows, dear)), replace(hangs_on, second="twin"))
        assert "The order of the two best by cost is sure: twin costs" in sure

    def test_what_would_flip_it_stands_there_in_words(self, study, hangs_on):
        flip = Flip(Input("nodes.A100x4.capital_usd", 90_000, 80_000, 100_000, "quote 3"), 531_234)
        text = verdict_of(gaining(study), replace(hangs_on, flips=(flip,)))
        assert (
            f"If one A100x4 node cost over $531,000 (here $90,000), {hangs_on.second} would be cheaper than "
            f"{hangs_on.best}." in text
        )
        assert "No single assumption within reach" in verdict_of(gaining(study), replace(hangs_on, flips=()))

    def test_beside_a_fleet_that_is_paid_for_the_smallest_purchase_is_no_headline(self, study, hangs_on):
        """Its tokens are the cheapest, being mostly the old fleet's: the gain for a dollar decides."""
        study = gaining(study)
        question = PurchaseFigures(
            "t", study.rows, study.billing, (None,) * len(study.rows), "USD", sensitivity=hangs_on
        )
        assert question.adds_to_a_fleet
        gains = [row.marginal_tokens_per_usd for row in study.rows]
        place, why = chosen(question)
        assert (gains[place], why) == (max(gain for gain in gains if gain is not None), MOST_FOR_A_DOLLAR)
        rented = tuple(
            replace(row, bill=replace(row.bill, charges=tuple(
                replace(charge, kind="rent") for charge in row.bill.charges)))
            for row in study.rows
        )  # fmt: skip
        place, why = chosen(replace(question, rows=rented))
        assert (study.rows[place].name, why) == (hangs_on.best, CHEAPEST)


class TestTornado:
    def test_what_moves_nothing_is_left_out_and_counted(self, study, hangs_on):
        from tangram_sim.reports.purchases import what_if_report

        def swing(number: int, width: float) -> Swing:
            return Swing(Input(f"in{number}", 1, 0.9, 1.1, "s"), hangs_on.value, hangs_on.value * (1 + width))

        swings = (swing(0, 0.3), swing(1, 0.006), *(swing(n, 0.001) for n in range(2, 33)))
        found = replace(hangs_on, tornado=swings)
        assert [item.input.name for item in mattering(found)] == ["in0", "in1"]
        assert len(tornado(found)["rows"]) == 2
        assert "31 more assumptions move it by less than 0.5 %" in said(what_if_report(study, found, HWDB))


def test_points_of_the_front_carry_their_intervals(study):
    rows = [row for row in study.rows if row.document]
    drawn = front(rows, [1.0 + n for n in range(len(rows))], "USD", line=True, chosen=rows[1].name)
    for row, point in zip(rows, drawn["points"], strict=True):
        assert (point["y"], point["low"], point["high"]) == (
            row.throughput.tokens_per_s, row.throughput.low, row.throughput.high,
        )  # fmt: skip
    assert [point["chosen"] for point in drawn["points"]] == [n == 1 for n in range(len(rows))]


def test_a_sensitivity_of_one_candidate_says_nothing_of_a_second(study, hangs_on):
    alone: Sensitivity = replace(hangs_on, second=hangs_on.best, flips=())
    text = verdict_of(gaining(study), alone)
    assert "tie" not in text and "No single assumption" not in text


def test_a_figure_stays_with_its_unit_and_breaks_before_its_interval():
    kept = kept_together("350,000 (250,000 to 500,000)").split(" ")
    assert [item.replace("\N{NO-BREAK SPACE}", " ") for item in kept] == ["350,000", "(250,000 to 500,000)"]
    assert kept_together("g0 8/8 87 %, g1 0/4").count(" ") == 1
    assert "\N{NO-BREAK SPACE}" not in kept_together("the planner found no plan: " + "why " * 20)


def test_keys_of_a_price_file_are_said_in_words():
    said_so = keys_in_words("for want of economics.pue, nodes.p5.48xlarge.rent_usd_per_hour")
    assert said_so == "for want of power drawn over power of nodes (PUE), rent of one p5.48xlarge an hour"


def test_who_buys_nothing_is_not_called_nothing_in_a_sentence():
    assert [in_a_sentence(item) for item in ("nothing", "fleet")] == ["the fleet as it stands"] * 2
    assert in_a_sentence("+ 1 x p5.48xlarge") == "+ 1 x p5.48xlarge"


def test_no_name_in_a_chart_ends_its_script_or_begins_another():
    name = "<!--<script></script><b>"
    [data] = re.findall(r'<script type="application/json">(.*)</script>', chart("c", {"name": name}, ()))
    assert "<" not in data and json.loads(data) == {"name": name}
