"""The page on a replay shows every policy, its accounts, and what it did when."""

from pathlib import Path

from tests.commands import tangram


def test_the_page_stands_alone_and_shows_policies_accounts_and_a_timeline(tmp_path: Path) -> None:
    speeds, trace, page = tmp_path / "speeds.csv", tmp_path / "trace.csv", tmp_path / "report.html"
    speeds.write_text("pipelines,stages,samples_per_s\n1,2,10\n2,2,19\n")
    trace.write_text("time_s,event,node\n0,add,a\n0,add,b\n0,add,c\n0,add,d\n600,remove,a\n900,add,e\n")
    found = tangram("replay-trace", "m", trace, "--speeds", speeds, "--restart-s", 30, "-o", page)
    assert found.code == 0, found.err
    text = page.read_text()
    for key in ('id="policies"', 'id="accounts"', 'id="policies-timeline"', "default-src 'none'", "shrink"):
        assert key in text
    answer = tmp_path / "answer.json"
    assert tangram("replay-trace", "m", trace, "--speeds", speeds, "-o", answer).code == 0
    assert '"upper_bound"' in answer.read_text()
    assert tangram("replay-trace", "m", trace, "--speeds", speeds, "-o", tmp_path).code == 2
