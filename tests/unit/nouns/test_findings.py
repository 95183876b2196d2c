"""Findings: codes for programs, figures for both, words for people."""

import string

import pytest

import tangram_sim.cli.main
import tangram_sim.studies  # noqa: F401
from tangram_sim.findings import KINDS, Finding, Severity, behind_stops, declare

FULL = declare("test-full", Severity.WARNING, "{share:percent1} of {size_bytes:bytes} in {time_s:seconds}")
STOP = declare("test-stop", Severity.STOPPED, "stopped by {names:listed}")


def test_the_words_are_made_of_the_figures_in_units_that_people_read() -> None:
    assert str(FULL(share=0.125, size_bytes=2.0**30, time_s=0.0021)) == "12.5 % of 1.0 GiB in 2.1 ms"
    assert STOP(names=["a", "b"]).text == "stopped by a, b"


def test_a_finding_lacks_no_figure_that_its_words_need() -> None:
    with pytest.raises(KeyError, match="time_s"):
        FULL(share=0.1, size_bytes=1.0)


def test_a_finding_comes_back_from_json_as_it_was() -> None:
    finding = FULL(share=0.125, size_bytes=2.0**30, time_s=0.0021)
    written = finding.model_dump(mode="json")
    assert written["severity"] == "warning"
    assert Finding.model_validate(written) == finding


def test_no_two_kinds_have_one_code() -> None:
    with pytest.raises(ValueError, match="test-full is declared twice"):
        declare("test-full", Severity.NOTE, "again")
    assert all(kind.code == code for code, kind in KINDS.items())


def test_codes_are_words_with_hyphens_and_templates_name_their_figures() -> None:
    """A code is stable and readable; a figure without a name could not be found in JSON."""
    for code, kind in KINDS.items():
        assert set(code) <= set(string.ascii_lowercase + string.digits + "-"), code
        names = [name for _, name, _, _ in string.Formatter().parse(kind.words) if name is not None]
        assert all(name.isidentifier() for name in names), code


def test_what_ended_a_search_stays_in_front() -> None:
    stop, full = STOP(names=["hand"]), FULL(share=1.0, size_bytes=1.0, time_s=1.0)
    assert behind_stops(full, [stop]) == [stop, full]
    assert behind_stops(full, [], [stop]) == [stop, full]
