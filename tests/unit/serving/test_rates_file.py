"""Arrivals at rates that change over time: windows, streams, bursts."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tangram_sim.errors import BadInputError
from tangram_sim.serving.rates_file import RateWindow, arrivals_at, read_rates
from tangram_sim.studies.serving_workload import describe_rates
from tests.commands import tangram

TABLE = """\
pool,client,start_s,rate_rps,cv
a,0,0,10,1.0
a,0,100,0,1.0
a,0,200,40,2.0
a,1,0,5,0.5
a,1,100,5,0.5
a,1,200,5,0.5
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "rates.csv"
    file.write_text(TABLE)
    return file


def test_windows_of_each_stream_follow_each_other(table: Path) -> None:
    windows = read_rates(table, {"client": "0"})
    assert windows == [
        RateWindow("a/0", 0, 100, 10, 1),
        RateWindow("a/0", 100, 200, 0, 1),
        RateWindow("a/0", 200, 300, 40, 2),
    ]
    times = arrivals_at(windows, 10**6, seed=1)
    inside = [int(((times >= begin) & (times < begin + 100)).sum()) for begin in (0, 100, 200)]
    assert inside[0] == pytest.approx(1000, rel=0.1)
    assert inside[1] < 20  # the first arrival is second 0, so windows begin a little before
    assert inside[2] == pytest.approx(4000, rel=0.15)


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_gaps_vary_as_asked(cv: float) -> None:
    times = arrivals_at([RateWindow("", 0.0, 20_000.0, 2.0, cv)], 10**6, seed=3)
    gaps = np.diff(times)
    assert 1 / gaps.mean() == pytest.approx(2.0, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05, abs=1e-9)


def test_streams_come_together_and_are_cut_at_the_count(table: Path) -> None:
    times = arrivals_at(read_rates(table, {}), 300, seed=0)
    assert len(times) == 300
    assert (np.diff(times) >= 0).all()
    assert times[-1] == pytest.approx(20.0, rel=0.2)  # 15 a second of both


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("start_s,rps\n0,1\n", "no column rate_rps"),
        ("start_s,rate_rps\n0,-1\n", "a number of 0 or more"),
        ("start_s,rate_rps\n0,nan\n", "a number of 0 or more"),
        ("start_s,rate_rps\n0,1\n0,2\n", "begin at the same second"),
        ("start_s,rate_rps\n0,0\n", "no request comes"),
        ("start_s,rate_rps\n0,1e9\n", "at most"),
    ],
)
def test_bad_rates_are_refused_in_words(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(text)
    with pytest.raises(BadInputError, match=words):
        arrivals_at(read_rates(file, {}), 100, seed=0)


def test_the_command_plays_rates(table: Path, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("replicas:\n  - {name: a, costs: {step_s: 0.01, prompt_s: 2.0e-5, kv_blocks: 4000}}\n")
    asked = ("serve", "simulate", fleet, "--rates", table, "--isl", "50", "--osl", "5", "--requests", "900")
    told = tangram(*asked, "--where", "client=1", "--json").json
    assert told["requests"]["completed"] == 900
    assert told["offered_rps"] == pytest.approx(5.0, rel=0.1)
    refused = tangram(*asked, "--rate", "3")
    assert refused.code == 2
    assert "leave --trace, --rate" in refused.err


def test_a_file_of_rates_is_described_by_stream(table: Path) -> None:
    """10, 0 and 40 a second of one client, 5 of the other, for 100 s each."""
    found = tangram("serve", "workload", "describe", table, "--json").json
    assert (found["windows"], found["span_s"], found["requests"]) == (6, 300, 6500)
    assert found["rate_rps"] == pytest.approx(6500 / 300)
    assert (found["quietest_window_rps"], found["busiest_window_rps"]) == (5, 45)
    assert [(item["name"], item["most_rps"], item["least_rps"]) for item in found["streams"]] == [
        ("a/0", 40, 0),
        ("a/1", 5, 5),
    ]
    assert found["streams"][0]["burstiness_cv"] == pytest.approx((1000 * 1 + 4000 * 2) / 5000)
    shown = tangram("serve", "workload", "describe", table, "--where", "client=1").out
    assert "3 windows in 300 s, 1,500 requests expected" in shown
    wrong = tangram("serve", "workload", "describe", table, "--rate", "3")
    assert (wrong.code, "leave --rate" in wrong.err) == (2, True)


@pytest.mark.parametrize(
    "moments", [(5.37, 20.25, 20.46, 90.29), (2.2, 2.9, 7.2)], ids=lambda item: f"{len(item)} moments"
)
def test_windows_end_where_the_next_begins_whatever_binary_fractions_make_of_it(
    moments: tuple[float, ...],
) -> None:
    """Starts plus lengths are not the ends: 1, 2, ... a second, one after the other."""
    pairs = pairwise(moments)
    windows = [RateWindow("a", low, high, 1.0 + n, 1.0) for n, (low, high) in enumerate(pairs)]
    assert any(window.start_s + (window.end_s - window.start_s) != window.end_s for window in windows)
    found = describe_rates(windows)
    assert (found.quietest_window_rps, found.busiest_window_rps) == (1.0, len(windows))


def test_lengths_alone_and_tables_of_what_goes_are_said(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("input_tokens,output_tokens\n100,10\n300,30\n")
    found = tangram("serve", "workload", "describe", tmp_path / "lengths.csv", "--json").json
    assert found["input_tokens"]["mean"] == 200
    assert "lengths only" in found["notes"][0]
    (tmp_path / "spot.csv").write_text("trace,gpu,time_s,event,node,count\na,T4,0,add,n1,\n")
    spot = tangram("serve", "workload", "describe", tmp_path / "spot.csv")
    assert (spot.code, "plays it as --spot" in spot.err) == (2, True)
