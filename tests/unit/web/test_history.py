"""Answers of the page that are kept: files on disk, addresses, two side by side, a file of all questions."""

import json
from stat import S_IMODE

import pytest

from tangram_sim.questions.question import read_questions
from tangram_sim.web import history as module
from tangram_sim.web.documents import VerbAnswer, VerbRequest
from tangram_sim.web.history import History, question_key
from tests.browser import browser
from tests.commands import tangram
from tests.unit.web.live import live_page
from tests.unit.web.looks import cut_tables, faint
from tests.unit.web.test_other_pages import go
from tests.unit.web.test_page import SHOTS, click, put, says

HOSTILE = "<img src=x onerror=document.title='taken'>.yaml"


def asked(effort="quick", **more):
    """A request of the page for a plan."""
    options = {"effort": effort, "global-batch": "8", "seq": "512"}
    return VerbRequest(verb="plan", arguments=["gpt3-125m", "azure-c1"], options=options, **more)


def answer(step_s=1.0):
    question = {"verb": "plan", "model": "gpt3-125m", "cluster": "azure-c1", "effort": "quick"}
    return VerbAnswer(command="tangram plan", code=0, document={"step_s": step_s, "question": question})


def _homeless():
    raise RuntimeError("Could not determine home directory.")


class TestFiles:
    def test_an_answer_is_its_owners_alone_and_found_by_its_question(self, tmp_path):
        kept = History(tmp_path / "data" / "history")
        kept.put(asked(), answer())
        (path,) = kept.folder.iterdir()
        assert S_IMODE(path.stat().st_mode) == 0o600 and S_IMODE(kept.folder.stat().st_mode) == 0o700
        assert path.stem == question_key(asked()) == question_key(asked(keep=True))
        found = kept.get(path.stem)
        assert (found.request, found.answer) == (asked(), answer())
        assert kept.listed().entries[0].figures == {"step_s": 1.0}

    def test_the_same_question_again_takes_the_place_of_its_answer(self, tmp_path):
        kept = History(tmp_path / "history")
        for step_s in (1.0, 2.0):
            kept.put(asked(), answer(step_s))
        kept.put(asked("normal"), answer(3.0))
        assert sorted(line.figures["step_s"] for line in kept.listed().entries) == [2.0, 3.0]

    @pytest.mark.parametrize("damage", ["figure", "cut", "list", "moved", "no digest"])
    def test_damaged_files_are_said_and_skipped(self, tmp_path, damage):
        kept = History(tmp_path / "history")
        kept.put(asked(), answer())
        kept.put(asked("normal"), answer())
        path = kept.folder / f"{question_key(asked())}.json"
        text = path.read_text()
        if damage == "moved":  # a whole file under the name of another question
            path = path.replace(kept.folder / f"{'0' * 32}.json")
        elif damage == "no digest":
            path.write_text(json.dumps({k: v for k, v in json.loads(text).items() if k != "digest"}))
        else:
            changed = text.replace('"step_s": 1.0', '"step_s": 9.0')
            assert changed != text
            path.write_text({"figure": changed, "cut": text[:-20], "list": "[]"}[damage])
        listed = kept.listed()
        assert listed.damaged == [path.stem] and len(listed.entries) == 1
        assert kept.forget(path.stem) == 1 and kept.listed().damaged == []

    def test_other_files_and_links_are_left_alone(self, tmp_path):
        kept = History(tmp_path / "history")
        other, secret = kept.folder / "notes.json", tmp_path / "secret.json"
        other.write_text("{}")
        secret.write_text("{}")
        (kept.folder / f"{'a' * 32}.json").symlink_to(secret)
        kept.put(asked(), answer())
        assert len(kept.listed().entries) == 1 and kept.listed().damaged == []
        assert kept.forget() == 1
        assert other.exists() and secret.exists()

    def test_a_folder_that_others_can_use_keeps_nothing(self, tmp_path):
        (tmp_path / "history").mkdir(mode=0o755)
        kept = History(tmp_path / "history")
        assert "others than you" in kept.why_off
        kept.put(asked(), answer())
        assert list(kept.folder.iterdir()) == []

    def test_the_oldest_answers_go_where_room_is_short(self, tmp_path, monkeypatch):
        kept = History(tmp_path / "history")
        kept.put(asked(), answer())
        monkeypatch.setattr(module, "MOST_BYTES", 1.5 * next(kept.folder.iterdir()).stat().st_size)
        kept.put(asked("normal"), answer())
        assert [line.key for line in kept.listed().entries] == [question_key(asked("normal"))]

    def test_all_questions_are_a_file_that_asks_them_again_with_their_files(self, tmp_path):
        kept = History(tmp_path / "history")
        cluster = "{name: mine, nodes: [{count: 1, node: DGX-H100}]}"
        request = VerbRequest(verb="islands", arguments=["cluster.yaml"], files={"cluster.yaml": cluster})
        document = {"question": {"verb": "islands", "cluster": "cluster.yaml"}}
        kept.put(request, VerbAnswer(command="tangram islands cluster.yaml", code=0, document=document))
        kept.put(asked(), answer())
        file = tmp_path / "questions.yaml"
        file.write_text(kept.question_file())
        assert [found.VERB for found in read_questions(file, tmp_path)] in (
            ["islands", "plan"],
            ["plan", "islands"],
        )
        said = tangram("run", str(file), "--json").out
        assert '"mine"' in said and '"step_s"' in said

    @pytest.mark.parametrize("name", ["../x.yaml", "..", "", "x\0.yaml", "x\n.yaml"])
    def test_files_of_a_question_file_lead_nowhere_else(self, tmp_path, name):
        file = tmp_path / "questions.yaml"
        file.write_text(json.dumps({"questions": [{"verb": "islands", "files": {name: "{}"}}]}))
        assert "plain names" in tangram("run", str(file)).err

    def test_a_file_without_a_question_says_so(self, tmp_path):
        file = tmp_path / "questions.yaml"
        file.write_text("questions: []")
        assert "nothing is asked" in tangram("run", str(file)).err

    def test_who_has_no_home_keeps_nothing(self, monkeypatch):
        monkeypatch.delenv("XDG_DATA_HOME", raising=False)
        monkeypatch.setattr(module.Path, "home", _homeless)
        folder, why = module.history_folder()
        kept = History(folder, why)
        kept.put(asked(), answer())
        assert "no home folder" in kept.listed().why_off
        assert kept.listed().entries == [] and kept.get(question_key(asked())) is None


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def served(data):
    SHOTS.mkdir(parents=True, exist_ok=True)
    with live_page("--at-once", "2", data=data) as found:
        yield found


@pytest.fixture(scope="module")
def page(served):
    with browser() as found:
        mine = found.another(served.home)
        mine.resize(1280, 900)
        mine.open(served.address)
        assert mine.wait_for("document.getElementById('page').dataset.ready === 'plan'")
        yield mine


def planned(page, batch):
    """Plan a small job and wait for its answer."""
    put(page, "model", "gpt3-125m")
    put(page, "cluster", "azure-c1")
    put(page, "global-batch", batch)
    put(page, "seq", "512")
    put(page, "effort", "quick")
    click(page, "Plan")
    assert page.wait_for(f"location.hash.includes('global-batch={batch}&')", 60)
    assert says(page, "Why not otherwise"), page.evaluate("document.body.innerText")
    return page.evaluate("location.hash")


def lead(page):
    return page.evaluate("document.querySelector('.lead')?.textContent")


class TestAddresses:
    def test_reload_a_second_tab_and_back_show_an_answer_again(self, page, served):
        first = planned(page, "8")
        assert "global-batch=8" in first and "kept=" in first and "token" not in first
        said = lead(page)
        second = planned(page, "16")
        other = lead(page)
        assert first != second and said != other
        page.evaluate("history.back()")
        assert page.wait_for(f"document.querySelector('.lead')?.textContent === {json.dumps(said)}", 60)
        assert page.evaluate("document.querySelector('[name=global-batch]').value") == "8"
        page.evaluate("history.forward()")
        assert page.wait_for(f"document.querySelector('.lead')?.textContent === {json.dumps(other)}", 60)
        page.send("Page.reload")
        assert page.wait_for(f"document.querySelector('.lead')?.textContent === {json.dumps(other)}", 60)
        with page.tab(served.home) as tab:
            tab.open(f"{served.home}/{first}")
            assert tab.wait_for(f"document.querySelector('.lead')?.textContent === {json.dumps(said)}", 60)
            assert tab.evaluate("document.querySelector('[name=model]').value") == "gpt3-125m"
            assert page.problems == tab.problems == []

    def test_going_from_page_to_page_keeps_the_answer_and_its_address(self, page):
        before, said = page.evaluate("location.hash"), lead(page)
        go(page, "serve")
        go(page, "plan")
        assert (page.evaluate("location.hash"), lead(page)) == (before, said)

    def test_an_estimate_is_its_address(self, page, served):
        asked = "ask=estimate&of=gpt3-125m&of=azure-c1&global-batch=20&seq=512&pp:=3&tp:=1"
        with page.tab(served.home) as tab:
            tab.open(f"{served.home}/#estimate?{asked}")
            assert tab.wait_for("document.querySelectorAll('.stage').length === 3", 60)
            assert tab.evaluate(
                "location.hash.includes('pp%3A=3') && location.hash.includes('global-batch=20')"
            )

    def test_two_answers_stand_side_by_side_with_what_differs(self, page):
        go(page, "history")
        assert says(page, "Kept answers", 15)
        assert page.evaluate("[...document.querySelectorAll('button')]"
                             ".find(e => e.textContent === 'Compare the two').disabled")  # fmt: skip
        page.evaluate("document.querySelectorAll('td input[type=checkbox]').forEach(e => e.click())")
        page.screenshot(SHOTS / "history.png")
        click(page, "Compare the two")
        assert says(page, "Two answers side by side", 15)
        differs = page.evaluate("[...document.querySelectorAll('tr.chosen')].map(e => e.innerText)")
        assert any("global batch" in row and "16" in row and "8" in row for row in differs)
        assert any(row.startswith("step") for row in differs)
        for width in (2560, 390):
            page.resize(width, 900, mobile=width == 390)
            assert page.wait_for(f"document.documentElement.scrollWidth <= {width + 1}")
            page.screenshot(SHOTS / f"history-pair-{width}.png")
        assert cut_tables(page) == [] and faint(page) == []
        page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        assert faint(page) == []
        page.send("Emulation.setEmulatedMedia", features=[])
        page.resize(1280, 900)
        assert page.problems == []

    def test_a_damaged_file_and_a_hostile_name_are_shown_as_text(self, page, served, data):
        folder = data / "tangram-sim" / "history"
        hostile = VerbRequest(verb="plan", arguments=["gpt3-125m", HOSTILE], files={HOSTILE: HOSTILE})
        History(folder).put(hostile, VerbAnswer(command=f"tangram plan {HOSTILE}", code=0, document={}))
        (folder / f"{'b' * 32}.json").write_text("<script>document.title='taken'</script>")
        go(page, "plan")
        go(page, "history")
        assert says(page, "onerror", 15) and says(page, "bbb.json is damaged", 15)
        assert page.evaluate("document.querySelector('main img')") is None
        assert page.evaluate("document.title") == "History - tangram"
        page.evaluate("document.querySelector('.error button').click()")
        assert page.wait_for("!document.querySelector('.error')")

    def test_answers_are_deleted_one_by_one_and_all_at_once(self, page, data):
        folder = data / "tangram-sim" / "history"
        rows = page.evaluate("document.querySelectorAll('tbody tr').length")
        assert rows == len(list(folder.iterdir()))
        page.evaluate("document.querySelector('[aria-label^=delete]').click()")
        assert page.wait_for(f"document.querySelectorAll('tbody tr').length === {rows - 1}")
        click(page, "Delete all")
        assert len(list(folder.iterdir())) == rows - 1, "one press deletes nothing"
        click(page, "Press again to delete all")
        assert says(page, "None yet", 15)
        assert list(folder.iterdir()) == []
        assert page.problems == []

    def test_an_answer_that_is_gone_is_said_and_its_question_stands_in_the_form(self, page, served):
        gone = "ask=plan&of=gpt3-125m&of=azure-c1&global-batch=24&seq=512&kept=" + "c" * 32
        with page.tab(served.home) as tab:
            tab.open(f"{served.home}/#plan?{gone}")
            assert says(tab, "not kept on this machine", 15)
            assert tab.evaluate("document.querySelector('[name=global-batch]').value") == "24"


def test_a_page_without_history_writes_nothing_and_says_so(tmp_path):
    with live_page("--no-history", data=tmp_path) as served:
        found = served.run(verb="islands", arguments=["azure-c1"], keep=True)
        assert found["code"] == 0
        status, text = served.ask("/api/history")
        assert (status, "--no-history" in json.loads(text)["why_off"]) == (200, True)
        assert served.ask("/api/history", x_tangram_token="wrong")[0] == 401
    assert list(tmp_path.iterdir()) == []
