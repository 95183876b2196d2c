"""Reports: one offline page in which every number has a source, seen by a real browser."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.purchasing.fleets import Fleet, parse_purchases
from tangram_sim.purchasing.pricefile import load_prices
from tangram_sim.purchasing.rows import throughput_of
from tangram_sim.purchasing.sensitivity import sensitivity
from tangram_sim.purchasing.whatif import what_if
from tangram_sim.reports.plan_sections import plan_report
from tangram_sim.reports.rounding import with_interval
from tangram_sim.studies import api
from tangram_sim.training.job import Job
from tangram_sim.units import percent, show_seconds
from tests.browser import browser
from tests.commands import files, tangram
from tests.unit.purchasing.shop import NODES, PRICES

HWDB = Hwdb.load()
JOB = Job(global_batch=8, seq=1024)
_SKIPPED = ("style", "script", "title")
_VOID = ("meta", "link", "br")
PLOTS = ["front", "costs", "tornado", "timeline", "memory"]


class Reading(HTMLParser):
    """What a page says: stray figures, cited ids, ids there are, tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[tuple[str, dict[str, str | None]]] = []
        self.stray: list[str] = []
        self.cited: set[str] = set()
        self.listed: dict[str, str] = {}
        self.cells: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.cited |= set((given.get("data-source") or "").split())
        if tag not in _VOID:
            self.stack.append((tag, given))

    def handle_endtag(self, tag):
        while self.stack and self.stack.pop()[0] != tag:
            pass

    def handle_data(self, data):
        inside = [tag for tag, _ in self.stack]
        if any(tag in _SKIPPED for tag in inside):
            return
        for _, given in self.stack:
            key = given.get("id") or ""
            if re.fullmatch(r"s\d+", key):
                self.listed[key] = self.listed.get(key, "") + data
                return
        known = any("data-source" in given or "data-name" in given for _, given in self.stack)
        if re.search(r"\d", data) and not known:
            self.stray.append(data)
        if any("data-source" in given for _, given in self.stack) and "a" not in inside:
            self.cells.append(data.replace("\N{NO-BREAK SPACE}", " "))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    files(folder)
    (folder / "prices.yaml").write_text(PRICES)
    for name, text in NODES.items():
        (folder / f"{name}.yaml").write_text(text)
    fleet = Fleet.of(load_cluster(str(folder / "lab.yaml"), HWDB))
    adds = [parse_purchases(f"{folder}/{name}.yaml:1", HWDB) for name in ("T4x4", "V100x4", "A100x4")]
    return what_if(
        load_model(str(folder / "tiny.yaml")), fleet, adds, job=JOB, tokens=1e10,
        prices=load_prices(folder / "prices.yaml", HWDB), hwdb=HWDB, wishes=SearchOptions(sub_islands=False),
    )  # fmt: skip


@pytest.fixture(scope="module")
def hangs_on(study):
    return sensitivity(study, HWDB)


@pytest.fixture(scope="module")
def report(study, hangs_on, tmp_path_factory) -> Path:
    from tangram_sim.reports.purchases import what_if_report

    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(what_if_report(study, hangs_on, HWDB), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def page(report):
    with browser() as found:
        found.resize(1200, 900)
        found.open(report)
        yield found


class TestSources:
    @pytest.mark.slow
    def test_every_number_traces_to_a_source_listed_in_the_report(self, report):
        found = Reading(report.read_text())
        assert found.stray == []
        assert len([cell for cell in found.cells if re.search(r"\d", cell)]) > 50
        assert found.cited == set(found.listed), "cited without being listed, or listed and never used"

    def test_sources_say_more_than_their_number(self, report):
        found = Reading(report.read_text())
        kinds = ("simulated", "given", "price", "assumed", "hardware", "computed")
        for text in found.listed.values():
            assert text.startswith(tuple(f"{kind}:" for kind in kinds))
            assert len(text) > 20

    def test_prices_come_with_day_and_source(self, report):
        listed = list(Reading(report.read_text()).listed.values())
        assert any("quote 3, 2026-11-01" in text for text in listed)
        assert any("finance, 2026-11-01" in text and "pue" in text for text in listed)

    def test_figures_are_those_of_the_study(self, study, report):
        cells = Reading(report.read_text()).cells
        for row in study.rows:
            found = row.throughput
            assert with_interval(found.tokens_per_s, found.low, found.high) in cells
            assert percent(row.document.mfu, 1) in cells

    def test_no_figure_of_a_table_needs_powers_of_ten(self, report):
        text = report.read_text()
        cells = [re.sub("<[^>]+>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", text, re.DOTALL)]
        assert len(cells) > 100
        assert not [cell for cell in cells if re.search(r"\d[eE][+-]?\d", cell)]

    def test_nothing_is_fetched(self, report):
        """No address in anything that loads by itself, beside the policy that would stop it."""
        text = report.read_text()
        body = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
        assert not re.search(r"""(src|href)=["']?(https?:)?//""", body)
        assert "default-src 'none'" in body

    def test_the_same_study_gives_the_same_bytes(self, study, hangs_on, report):
        from tangram_sim.reports.purchases import what_if_report

        assert what_if_report(study, hangs_on, HWDB) == report.read_text()

    def test_intervals_enter_the_throughput(self, study):
        document = study.rows[0].document
        found = throughput_of(document)
        tokens = JOB.global_batch * JOB.seq
        assert document.step_s_low < document.step_s < document.step_s_high
        assert (found.low, found.high) == (tokens / document.step_s_high, tokens / document.step_s_low)
        bare = document.model_copy(update={"step_s_low": 0.0, "step_s_high": 0.0})
        assert throughput_of(bare).low == throughput_of(bare).high == tokens / document.step_s

    def test_stages_are_sorted_by_first_layer_and_by_the_share_of_memory_not_by_their_words(self):
        """By the alphabet layer 10 comes before layer 2, and 12 GiB before 9.8 GiB."""
        cluster = load_cluster("azure-c1-t4x4-v100x4", HWDB)
        document = api.plan(load_model("gpt3-350m"), cluster, Job(16, 2048), hwdb=HWDB).document
        page = plan_report(document, HWDB)
        sorts = {
            head: [float(found) for found in re.findall(f'data-head="{head}" data-sort="([^"]*)"', page)]
            for head in ("layers", "memory")
        }
        fullness = [stage.peak_memory_bytes / stage.memory_capacity_bytes for stage in document.stages]
        assert sorts["layers"] == [stage.layers[0] for stage in document.stages]
        assert sorts["memory"] == pytest.approx(fullness) and len(fullness) > 1


class TestInTheBrowser:
    def test_the_page_loads_without_complaint_and_has_its_plots(self, page):
        assert page.problems == []
        drawn = page.evaluate(
            "[...document.querySelectorAll('.figure')].filter(e => e.querySelector('svg')).map(e => e.id)"
        )
        assert drawn == PLOTS
        marks = page.evaluate("document.querySelectorAll('#timeline .op').length")
        assert marks >= 3, "a step has a forward pass, a backward pass and an optimizer"

    def test_a_figure_says_its_sources_when_it_is_pointed_at(self, page):
        page.evaluate("document.querySelector('#candidates td[data-source]').click()")
        told = page.evaluate("document.getElementById('told').innerText")
        assert "simulated:" in told and "tokens to train on" in told
        page.evaluate("document.querySelector('h1').click()")
        assert page.evaluate("document.getElementById('told').hidden")

    def test_tables_sort_by_value(self, page, study):
        rows = (
            "[...document.querySelectorAll('#candidates tbody tr')]"
            ".map(r => [r.cells[0].textContent, Number(r.cells[8].dataset.sort)])"
        )
        click = "document.querySelectorAll('#candidates th button')[8].click()"
        rates = sorted(row.throughput.tokens_per_s for row in study.rows)
        page.evaluate(click)
        assert [rate for _, rate in page.evaluate(rows)] == pytest.approx(rates)
        assert page.evaluate("document.querySelectorAll('#candidates th')[8].ariaSort") == "ascending"
        page.evaluate(click)
        assert [rate for _, rate in page.evaluate(rows)] == pytest.approx(rates[::-1])
        page.evaluate("document.querySelectorAll('#candidates th button')[0].click()")
        found = dict(page.evaluate(rows))
        assert found == pytest.approx({row.name: row.throughput.tokens_per_s for row in study.rows})
        assert page.problems == []

    def test_it_fits_a_phone_and_a_sheet_of_paper(self, page, tmp_path):
        page.screenshot(tmp_path / "wide.png")
        page.resize(390, 844, mobile=True)
        assert page.wait_for("document.documentElement.scrollWidth <= 391"), page.evaluate(
            "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > 400"
            " && !e.closest('.wide')).map(e => e.tagName + '#' + e.id + '.' + e.className).slice(0, 9).join()"
        )
        right = "Math.max(...[...document.querySelectorAll('td')].map(e => e.getBoundingClientRect().right))"
        assert page.evaluate(right) <= 391, "no figure is out of sight on a phone"
        page.screenshot(tmp_path / "phone.png")
        assert page.evaluate("document.documentElement.scrollHeight") < 6500
        page.resize(720, 1000)
        page.send("Emulation.setEmulatedMedia", media="print")
        assert page.wait_for(f"{right} <= 721"), "no figure is cut off on paper"
        page.screenshot(tmp_path / "paper.png")
        page.send("Emulation.setEmulatedMedia", media="")
        printed = page.pdf()
        page.resize(1200, 900)
        for name in ("wide.png", "phone.png", "paper.png"):
            assert (tmp_path / name).stat().st_size > 50_000, "a page with charts is no small picture"
        assert printed.startswith(b"%PDF")
        assert page.problems == []


class TestCommands:
    @pytest.mark.slow
    def test_what_if_and_plan_and_purchase_write_reports(self, tmp_path):
        model, cluster = files(tmp_path)
        (tmp_path / "prices.yaml").write_text(PRICES)
        for name, text in NODES.items():
            (tmp_path / f"{name}.yaml").write_text(text)
        (tmp_path / "catalogue.yaml").write_text("offers: [{node: T4x4.yaml, most: 1}]\n")
        prices = ("--prices", tmp_path / "prices.yaml", "--global-batch", 8, "--seq", 1024, "--jobs", 1)
        cache = ("--cache", tmp_path / "cache")
        asked = {
            "what-if": ("what-if", model, cluster, "--add", f"{tmp_path}/T4x4.yaml:1", *prices, *cache),
            "purchase": (
                "purchase", model, cluster, "--catalogue", tmp_path / "catalogue.yaml", "--acquire", "rent",
                *prices, *cache,
            ),
            "plan": ("plan", model, cluster, "--global-batch", 8, "--seq", 1024),
        }  # fmt: skip
        for name, words in asked.items():
            path = tmp_path / f"{name}.html"
            finished = tangram(*words, "-o", path)
            assert (finished.code, finished.err) == (0, "")
            assert f"report written to {path}" in " ".join(finished.out.split())
            found = Reading(path.read_text())
            assert found.stray == []
            assert found.cited == set(found.listed)

    def test_a_report_that_cannot_be_written_is_refused_before_any_work(self, tmp_path):
        model, cluster = files(tmp_path)
        (tmp_path / "file").write_text("")
        finished = tangram("plan", model, cluster, "-o", tmp_path / "file" / "report.html")
        assert finished.code == 2
        assert "is a file, not a folder" in finished.err

    def test_a_single_plan_is_a_report_too(self, study):
        from tangram_sim.reports.plan_sections import plan_report

        document = study.rows[0].document
        found = Reading(plan_report(document, HWDB))
        assert found.stray == []
        assert api.simulate(document, hwdb=HWDB).document.step_s == pytest.approx(document.step_s)

    def test_a_plan_says_its_bounds_and_what_stays_idle(self, study):
        from tangram_sim.reports.plan_sections import plan_report

        document = study.rows[0].document
        idle = document.model_copy(update={"gpus_total": document.gpus_used + 3})
        text = re.sub(r"<[^>]+>", "", plan_report(idle, HWDB))
        gap = document.step_s / document.work_bound_step_s - 1
        bound = show_seconds(document.work_bound_step_s)
        assert f"No plan on this cluster is below {bound} (gap {percent(gap)})" in text and gap > 0.1
        assert "GPUs work; 3 stay idle, at" in text
        assert "stay idle" not in plan_report(document, HWDB) or document.gpus_used < document.gpus_total


class TestWhatIsMissing:
    def test_no_prices_and_no_plan_leave_gaps_not_errors(self, tmp_path):
        """No prices: throughput alone is drawn. A candidate without a plan keeps its reason."""
        from dataclasses import replace

        from tangram_sim.reports.purchases import what_if_report

        model, cluster = files(tmp_path)
        fleet = Fleet.of(load_cluster(str(cluster), HWDB))
        found = what_if(
            load_model(str(model)), fleet, [], retired={"g0": 1}, job=JOB, hwdb=HWDB,
            wishes=SearchOptions(sub_islands=False),
        )  # fmt: skip
        bad = replace(found.rows[1], document=None, reason="nothing fits: 3 GiB missing")
        text = what_if_report(replace(found, rows=(found.rows[0], bad)), None, HWDB)
        read = Reading(text)
        assert read.stray == []
        assert read.cited == set(read.listed)
        assert "Not stated, hence not counted" in text
        assert "nothing fits: 3 GiB missing" in text
        assert ">Throughput</h2>" in text
        assert "Bars are 90 % intervals" not in text
        assert 'id="tornado"' not in text

    def test_reports_need_no_extra(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "plotly", None)
        model, cluster = files(tmp_path)
        words = ("plan", model, cluster, "--global-batch", 8, "--seq", 1024, "--effort", "quick")
        assert tangram(*words, "-o", tmp_path / "report.html").code == 0
        assert (tmp_path / "report.html").stat().st_size < 2e6


def test_a_page_has_no_control_characters() -> None:
    """A title or a cell with ESC or NUL in it is shown with both written out."""
    from tangram_sim.reports import page
    from tangram_sim.reports.ledger import Ledger

    text = page.page("a\x1b[31m", "b\0", "c\u202e", [page.section("d\x7f")], Ledger())
    assert not [mark for mark in text if not mark.isprintable() and mark not in "\n\t\xa0"]
    assert "\\x1b[31m" in text
