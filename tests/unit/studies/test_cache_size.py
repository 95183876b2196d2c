"""Answers on disk take no more than their limit, and processes no more than the cores can use."""

import os
from pathlib import Path

import pytest

from tangram_sim.errors import BadInputError
from tangram_sim.studies.sweep import MOST_PER_CORE, Cache, Sweep, cores

KEYS = [f"{number:02x}key" for number in range(8)]


def filled(folder: Path) -> Cache:
    """Eight answers of about a megabyte, the first written the longest ago."""
    kept = Cache(folder)
    for age, key in enumerate(KEYS):
        kept.put(key, {"text": "x" * 2**20})
        path = next(folder.rglob(f"{key}.json"))
        os.utime(path, (age, age))
    return kept


def test_the_least_recently_used_answers_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = filled(tmp_path)
    assert kept.get(KEYS[0]) is not None  # used now
    old = tmp_path / "0.0.9-aaaaaaaa" / "ff"
    old.mkdir(parents=True)
    (old / "ffold.json").write_text("y" * 2**20)
    monkeypatch.setattr("tangram_sim.studies.sweep.MOST_BYTES", 4.5 * 2**20)
    again = Cache(tmp_path)
    assert [key for key in KEYS if again.get(key) is not None] == [KEYS[0], *KEYS[5:]]
    assert not (old / "ffold.json").exists()


def test_nothing_goes_below_the_limit(tmp_path: Path) -> None:
    filled(tmp_path)
    assert all(Cache(tmp_path).get(key) is not None for key in KEYS)


def test_a_limit_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANGRAM_CACHE_LIMIT", "lots")
    with pytest.raises(BadInputError, match="4G"):
        Cache(tmp_path)


def test_more_processes_than_cores_can_use_are_not_started() -> None:
    pytest.importorskip("joblib", reason="joblib comes with the extra `sweep`")
    asked = Sweep(jobs=10_000)
    assert asked.jobs == MOST_PER_CORE * cores()
    assert any("10000 processes asked for" in note for note in asked.notes)
    assert Sweep(jobs=2).notes == []
