"""What-if: rows beside the fleet's own, and the commands of both verbs."""

import json
from dataclasses import replace
from datetime import date, timedelta

import pytest

from tangram_sim import datafiles
from tangram_sim.errors import BadInputError
from tangram_sim.purchasing.billing import Bill, Lack, Terms
from tangram_sim.purchasing.notes import notes_of
from tangram_sim.purchasing.pricefile import load_prices
from tangram_sim.purchasing.rows import Billing
from tangram_sim.purchasing.sensitivity import sensitivity, with_figure
from tangram_sim.purchasing.words import hourly, outlay
from tangram_sim.studies.planfile import read_plan
from tests.commands import tangram
from tests.unit.purchasing.shop import HWDB, PRICES


@pytest.fixture(scope="module")
def found(study):
    """What the ranking of the study hangs on, with a row that nobody put a price to."""
    unbilled = replace(study.rows[2], name="unbilled", bill=Bill((), None, (Lack("x", 1, 1, ("y",)),)))
    return sensitivity(replace(study, rows=(*study.rows, unbilled)), HWDB)


class TestWhatIf:
    def test_rows_are_the_fleet_what_is_left_of_it_and_the_candidates(self, study):
        assert [row.name for row in study.rows] == [
            "fleet", "fleet - 1 x g0", "fleet - 1 x g0 + 2 x A100x4", "fleet - 1 x g0 + 1 x V100x4",
        ]  # fmt: skip

    def test_figures_of_a_row_agree_with_its_plan(self, study):
        for row in study.rows:
            assert row.throughput.tokens_per_s == pytest.approx(
                row.document.tokens_per_s * row.goodput.fraction
            )
            assert sum(use.gpus_used for use in row.uses) == row.document.gpus_used
            assert sum(use.gpus for use in row.uses) == row.document.gpus_total
            assert row.days_to_train == pytest.approx(1e10 / row.throughput.tokens_per_s / 86_400)
            assert row.usd_to_train == pytest.approx(row.usd_per_million_tokens * 1e4)

    def test_margins_are_differences_to_the_fleet(self, study):
        base, row = study.rows[0], study.rows[2]
        gained = row.throughput.tokens_per_s - base.throughput.tokens_per_s
        paid = row.bill.usd_per_hour - base.bill.usd_per_hour
        assert row.marginal_tokens_per_usd == pytest.approx(gained * 3600 / paid)
        assert base.marginal_tokens_per_usd is None

    def test_what_is_known_is_shown_and_what_is_not_is_named(self, study, tmp_path):
        """Without the price of power, a rented candidate still says what it adds, and what it brings."""
        (tmp_path / "prices.yaml").write_text("\n".join(PRICES.splitlines()[:2]))  # the rent of V100x4 alone
        prices = load_prices(tmp_path / "prices.yaml", HWDB)
        billing = Billing(1e10, prices, Terms(fleet="owned"), failures=False)

        def row(old, base):
            return billing.row(old.name, old.fleet, old.document, base)

        base = row(study.rows[1], None)
        bought, rented = (row(old, base) for old in study.rows[2:])
        assert [charge.usd_per_hour for charge in rented.bill.charges] == [7.0]
        assert (hourly(base), hourly(bought), hourly(rented)) == ("-", "-", "> 7")
        assert (outlay(bought), outlay(rented)) == ("-", "0")
        power = ("economics.pue", "economics.usd_per_kwh")
        assert rented.bill.missing == power
        assert bought.bill.missing == (*power, "nodes.A100x4.rent_usd_per_hour or nodes.A100x4.capital_usd")
        gained = rented.throughput.tokens_per_s - base.throughput.tokens_per_s
        assert rented.marginal_tokens_per_usd == pytest.approx(gained * 3600 / 7)
        assert bought.marginal_tokens_per_usd is None
        notes = notes_of([base, bought, rented], prices)
        assert f"costs leave out g1 in every row, for want of {', '.join(power)}" in notes
        assert any("leave out A100x4 in `fleet - 1 x g0 + 2 x A100x4`" in note for note in notes)
        assert not any(note.startswith("costs") and "V100x4" in note for note in notes)

    def test_prices_of_more_than_a_year_ago_are_named_with_their_day(self, study):
        def told(today):
            return [
                note
                for note in notes_of(study.rows, study.billing.prices, today)
                if "older than a year" in note
            ]

        days = [
            date.fromisoformat(figure.date)
            for member in study.rows[-1].fleet.members
            for figure in [study.billing.prices.of(member).rent_usd_per_hour]
            if figure is not None and figure.date
        ]
        assert told(min(days) + timedelta(days=365)) == []
        (note,) = told(max(days) + timedelta(days=366))
        assert f"V100x4 (rent of {max(days).isoformat()})" in note

    def test_what_speaks_against_a_ranking_comes_first_and_names_its_rows(self, study):
        fp16, bf16 = (
            study.rows[1].document.job.model_copy(update={"dtype": item}) for item in ("fp16", "bf16")
        )
        sure = []
        for old in study.rows[1:]:
            told = {"step_s_low": old.document.step_s_high, "job": fp16}
            sure.append(replace(old, document=old.document.model_copy(update=told)))
        row, *others = sure
        member = row.fleet.members[0]
        node = replace(member.node, gpu=replace(member.node.gpu, vendor="amd"))
        fleet = replace(row.fleet, members=(replace(member, node=node), *row.fleet.members[1:]))
        told = {"step_s_low": row.document.step_s_high / 3, "job": bf16}
        uses = tuple(replace(use, gpus_used=use.gpus) for use in row.uses)
        wide = replace(row, fleet=fleet, uses=uses, document=row.document.model_copy(update=told))
        first, second, third, fourth = notes_of([wide, *others], study.billing.prices)[:4]
        assert first.startswith(f"`{row.name}`: GPUs of amd and nvidia in one run")
        assert second.startswith(f"`{others[0].name}`") and second.endswith("need it; the others in bf16")
        assert third.startswith(f"`{row.name}`: the ends of the interval are 3 times apart")
        assert "apart" not in fourth
        assert notes_of(sure, study.billing.prices)[-1].startswith(
            "Efficiencies of A100-SXM4-40GB are inherited"
        )

    def test_links_that_usual_boards_said_are_told_of_the_fleet_and_what_is_added(self, study):
        row = study.rows[2]
        said = "assumed: NVLink3 inside and 1600 Gbit/s of NICs (as DGX-A100-80GB)"
        member = row.fleet.members[-1]
        open_ended = replace(member, node=replace(member.node, labels=("leased", said)))
        fleet = replace(row.fleet, members=(*row.fleet.members[:-1], open_ended))
        assert f"{member.label}: {said}" in notes_of([replace(row, fleet=fleet)], study.billing.prices)
        assert not any("assumed: NVLink3" in note for note in notes_of([row], study.billing.prices))

    def test_old_gpus_that_nothing_uses_are_named(self, study):
        row = study.rows[3]
        uses = tuple(replace(use, gpus_used=0 if use.label == "g0" else use.gpus_used) for use in row.uses)
        (note,) = (
            note for note in notes_of([replace(row, uses=uses)], study.billing.prices) if "uses g0" in note
        )
        assert f"`{row.name}`" in note

    def test_the_ranking_is_among_what_is_bought_and_billed(self, study, found):
        assert study.contenders == study.rows[2:], "the fleet as it stands is no purchase"
        assert found.unpriced == ("unbilled",)
        assert {found.best, found.second} == {row.name for row in study.rows[2:]}

    def test_thresholds_are_where_the_ranking_flips(self, study, found):
        by_name = {row.name: row for row in study.contenders}  # one bought for capital, one by the hour
        best, second = by_name[found.best], by_name[found.second]
        assert found.score == "usd_per_million_tokens"
        assert found.tornado[0].width == max(swing.width for swing in found.tornado)
        bills = [flip for flip in found.flips if flip.input.row is None]
        assert bills, "some price must matter"
        for flip in bills:

            def lead(value, flip=flip):
                prices = with_figure(study.billing.prices, flip.input.name, value)
                billing = Billing(1e10, prices, study.billing.terms, failures=False)
                rows = [billing.row(row.name, row.fleet, row.document) for row in (best, second)]
                return [row.usd_per_million_tokens for row in rows]

            step = 1e-6 * (1 if flip.change > 0 else -1)
            before, after = lead(flip.threshold * (1 - step)), lead(flip.threshold * (1 + step))
            assert before[0] <= before[1] * (1 + 1e-9)
            assert after[1] <= after[0] * (1 + 1e-9)

    def test_efficiencies_are_varied_within_their_standard_error(self, found):
        rows = [swing.input for swing in found.tornado if swing.input.row is not None]
        assert rows
        for row in rows:
            assert row.low <= row.base <= row.high
            assert row.high - row.base <= row.row.number("sigma") * (1 + 1e-9)


class TestCommands:
    def test_what_if_writes_plans_that_replay(self, shop):
        done = tangram(
            "what-if", shop / "tiny.yaml", shop / "lab.yaml", "--add", f"{shop}/A100x4.yaml:1",
            "--global-batch", 8,
            "--cache", shop / "cache", "--jobs", 1, "-o", shop / "plans", "--json", "--tokens", "1e9",
        )  # fmt: skip
        assert (done.code, done.err) == (0, "")
        rows = done.json["candidates"]
        assert [row["name"] for row in rows] == ["fleet", "+ 1 x A100x4"]
        for row, name in zip(rows, ("fleet.json", "1_x_A100x4.json"), strict=True):
            assert read_plan(shop / "plans" / name).step_s == row["step_s"]
        assert rows[1]["missing"], "no price was given"
        assert rows[1]["usd_per_hour"] is None

    def test_a_disk_that_is_full_at_the_end_loses_no_answer(self, shop, monkeypatch):
        """The table stands before anything is written, and the answers are in the cache."""

        def full(files, *mode):
            if all(path.parent != shop / "plans" for path in files):
                return real(files, *mode)
            raise BadInputError(f"{next(iter(files))}: cannot be written: No space left on device")

        real = datafiles.write_all
        monkeypatch.setattr("tangram_sim.datafiles.write_all", full)
        words = (
            "what-if", shop / "tiny.yaml", shop / "lab.yaml", "--add", f"{shop}/A100x4.yaml:1",
            "--global-batch", 8, "--cache", shop / "cache", "--jobs", 1,
        )  # fmt: skip
        done = tangram(*words, "-o", shop / "plans")
        assert done.code == 2
        assert "No space left on device" in done.err
        assert "+ 1 x A100x4" in done.out
        assert "taken from the cache" in done.out
        assert "0 plans made" in tangram(*words).out

    def test_purchase_writes_its_front(self, shop):
        arguments = (
            "purchase", shop / "tiny.yaml", shop / "lab.yaml", "--catalogue", shop / "catalogue.yaml",
            "--prices", shop / "prices.yaml", "--max-nodes", 1, "--global-batch", 8,
            "--cache", shop / "cache", "--jobs", 1,
            "-o", shop / "out",
        )  # fmt: skip
        done = tangram(*arguments)
        assert (done.code, done.err) == (0, "")
        assert "the front of 4 mixes" in done.out
        front = json.loads((shop / "out" / "front.json").read_text())
        for point in front["front"]:
            for plan in point["plans"]:
                rate = read_plan(shop / "out" / "plans" / plan).tokens_per_s
                assert rate * point["rows"][0]["goodput"] == pytest.approx(point["tokens_per_s"])
        again = tangram(*arguments)
        assert "searched: 0 plans made" in again.out

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["what-if"], "nothing to compare"),
            (["what-if", "--add", "p5.48xlarge:1", "--tokens", "-1"], "--tokens -1"),
            (["what-if", "--add", "p5.48xlarge:1", "--acquire", "steal"], "steal"),
            (["what-if", "--add", "p5.48xlarge:1", "--jobs", "-2"], "--jobs -2"),
            (["what-if", "--add", "p5.48xlarge:1", "--cache", "x", "--no-cache"], "contradict"),
            (["what-if", "--add", "p5.48xlarge:1", "--prices", "none.yaml"], "none.yaml"),
            (["purchase", "--catalogue", "none.yaml"], "none.yaml"),
            (["purchase", "--catalogue", "catalogue.yaml", "--budget", "0"], "--budget 0"),
            (["purchase", "--catalogue", "catalogue.yaml", "--deadline", "soon"], "2027-03-01"),
            (["purchase", "--catalogue", "catalogue.yaml", "--weights", "1,2"], "--weights 1,2"),
            (["purchase", "--catalogue", "catalogue.yaml", "--cost", "blood"], "blood"),
            (["purchase", "--catalogue", "catalogue.yaml", "--acquire", "buy"], "cannot be priced without"),
            (["purchase", "--catalogue", "odd.yaml"], "unknown node"),
            (["purchase", "--catalogue", "twice.yaml"], "offered twice"),
            (["purchase", "--catalogue", "empty.yaml"], "offers"),
        ],
    )
    def test_bad_input_is_explained(self, shop, arguments, words, monkeypatch):
        monkeypatch.chdir(shop)
        (shop / "odd.yaml").write_text("offers: [{node: p55.48xlarge}]")
        (shop / "twice.yaml").write_text("offers: [{node: p5.48xlarge}, {node: p5.48xlarge}]")
        (shop / "empty.yaml").write_text("offers: []")
        done = tangram(arguments[0], "tiny.yaml", "lab.yaml", *arguments[1:])
        assert done.code == 2
        assert words in done.err
        assert "Traceback" not in done.err
