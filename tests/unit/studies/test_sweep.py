"""Sweeps: what was answered once is not asked again, and nothing answered is lost."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tangram_sim.digests import ChangedFileWarning, content_key
from tangram_sim.errors import BadInputError
from tangram_sim.planners.deadline import Deadline
from tangram_sim.studies import sweep as sweeps
from tangram_sim.studies.sweep import STOPPED, Answer, Cache, Sweep
from tests.places import ROOT


def square(item: int, deadline: Deadline) -> Answer:
    return {"square": item * item}


def fragile(item: int, deadline: Deadline) -> Answer:
    if item == 3:
        raise KeyboardInterrupt
    return square(item, deadline)


def halting(item: int, deadline: Deadline) -> Answer:
    if item == 3:
        time.sleep(600)
    return square(item, deadline)


def keys(items: range) -> list[str]:
    return [content_key({"item": item}) for item in items]


def test_answers_come_in_order_and_once_per_key():
    asked = []

    def work(item: int, deadline: Deadline) -> Answer:
        asked.append(item)
        return square(item, deadline)

    found = Sweep(jobs=1).run(work, [3, 1, 3], ["c", "a", "c"])
    assert [answer["square"] for answer in found] == [9, 1, 9]
    assert asked == [3, 1]


def test_several_processes_answer_as_one_does(tmp_path):
    pytest.importorskip("joblib", reason="joblib comes with the extra `sweep`")
    alone = Sweep(jobs=1).run(square, range(6), keys(range(6)))
    several = Sweep(Cache(tmp_path), jobs=2)
    assert several.run(square, range(6), keys(range(6))) == alone
    assert (several.made, several.kept) == (6, 0)


def test_an_interrupted_sweep_resumes(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        Sweep(Cache(tmp_path), jobs=1).run(fragile, range(6), keys(range(6)))
    again = Sweep(Cache(tmp_path), jobs=1)
    assert [answer["square"] for answer in again.run(square, range(6), keys(range(6)))] == [
        0,
        1,
        4,
        9,
        16,
        25,
    ]
    assert (again.made, again.kept) == (3, 3)
    assert not list(tmp_path.rglob(".*")), "no half-written file stays"


def test_a_sweep_that_is_killed_resumes(tmp_path):
    """No chance to tidy up: SIGKILL while the fourth of six is worked on."""
    words = (
        "import sys; from pathlib import Path; "
        "from tests.unit.studies.test_sweep import Cache, Sweep, halting, keys; "
        "Sweep(Cache(Path(sys.argv[1])), jobs=1).run(halting, range(6), keys(range(6)))"
    )
    root = ROOT
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    running = subprocess.Popen([sys.executable, "-c", words, str(tmp_path)], cwd=root, env=environment)
    until = time.monotonic() + 60
    while len(list(tmp_path.rglob("*.json"))) < 3 and time.monotonic() < until:
        time.sleep(0.05)
    running.kill()
    running.wait()
    again = Sweep(Cache(tmp_path), jobs=1)
    assert again.run(square, range(6), keys(range(6))) == [square(item, Deadline()) for item in range(6)]
    assert (again.made, again.kept) == (3, 3)


def test_progress_counts_over_all_runs_of_a_search():
    said: list[tuple[int, int]] = []
    sweep = Sweep(jobs=1, report=lambda done, total, _: said.append((done, total)))
    sweep.run(square, [1, 2], ["a", "b"], before=3, of=9)
    assert said == [(3, 9), (4, 9), (5, 9)]


def test_answers_of_another_version_are_ignored_with_a_note(tmp_path, monkeypatch):
    Sweep(Cache(tmp_path), jobs=1).run(square, range(2), keys(range(2)))
    monkeypatch.setattr(sweeps, "package_label", lambda: "9.9.9-feedbeef")
    later = Sweep(Cache(tmp_path), jobs=1)
    later.run(square, range(2), keys(range(2)))
    assert (later.made, later.kept) == (2, 0)
    (note,) = later.notes
    assert "other versions ignored" in note
    assert "9.9.9-feedbeef" in note


def test_an_answer_with_another_digit_or_under_another_key_is_made_anew(tmp_path):
    Sweep(Cache(tmp_path), jobs=1).run(square, [5], ["ab" * 16])
    (path,) = tmp_path.rglob("*.json")
    sound = path.read_text()
    path.write_text(sound.replace("25", "26"))
    with pytest.warns(ChangedFileWarning, match="made anew"):
        assert Sweep(Cache(tmp_path), jobs=1).run(square, [5], ["ab" * 16]) == [{"square": 25}]
    path.with_name(f"{'ab' * 15}cd.json").write_text(sound)
    with pytest.warns(ChangedFileWarning, match="made anew"):
        assert Sweep(Cache(tmp_path), jobs=1).run(square, [6], [f"{'ab' * 15}cd"]) == [{"square": 36}]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": "other", "answer": {}}', '{"answer": 3}'])
def test_a_damaged_answer_is_made_anew_with_a_note(tmp_path, text):
    cache = Cache(tmp_path)
    Sweep(cache, jobs=1).run(square, [5], ["ab" * 16])
    (path,) = tmp_path.rglob("*.json")
    path.write_text(text)
    again = Sweep(Cache(tmp_path), jobs=1)
    with pytest.warns(ChangedFileWarning, match="damaged answer ignored"):
        assert again.run(square, [5], ["ab" * 16]) == [{"square": 25}]
    assert again.made == 1
    assert json.loads(path.read_text())["answer"] == {"square": 25}


def test_a_full_disk_stops_the_cache_and_not_the_sweep(tmp_path, monkeypatch):
    real, written = sweeps.write_whole, []

    def full(path: Path, text: str) -> None:
        if len(written) == 2:
            raise BadInputError(f"{path}: cannot be written: No space left on device")
        written.append(path)
        real(path, text)

    monkeypatch.setattr(sweeps, "write_whole", full)
    found = Sweep(Cache(tmp_path), jobs=1)
    assert [answer["square"] for answer in found.run(square, range(5), keys(range(5)))] == [0, 1, 4, 9, 16]
    (note,) = found.notes
    assert "No space left on device" in note
    assert "stay" in note
    assert len(list(tmp_path.rglob("*.json"))) == 2, "what was written before stays"


def test_a_file_in_the_place_of_the_folder_is_noted(tmp_path):
    place = tmp_path / "cache"
    place.write_text("")
    found = Sweep(Cache(place), jobs=1)
    assert found.run(square, [2], keys(range(1))) == [{"square": 4}]
    assert "without its cache" in found.notes[0]


def test_keys_depend_on_content_not_on_order_of_keys():
    assert content_key({"a": 1, "b": [2, 3]}) == content_key({"b": [2, 3], "a": 1})
    assert content_key({"a": 1}) != content_key({"a": 2})


def test_jobs_below_zero_are_refused():
    with pytest.raises(BadInputError, match="`jobs=-1`"):
        Sweep(jobs=-1)


@pytest.mark.slow
def test_a_dask_cluster_answers_as_one_process_does():
    distributed = pytest.importorskip("distributed", reason="distributed comes with the extra `dask`")
    joblib = pytest.importorskip("joblib", reason="joblib comes with the extra `sweep`")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        assert Sweep(jobs=2).run(square, range(6), keys(range(6))) == Sweep(jobs=1).run(
            square, range(6), keys(range(6))
        )


@pytest.mark.slow
def test_a_sweep_finds_its_dask_cluster_by_address():
    distributed = pytest.importorskip("distributed", reason="distributed comes with the extra `dask`")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None, protocol="tcp"
    ) as cluster:
        sweep = Sweep(dask=cluster.scheduler_address)
        assert sweep.jobs == 2
        assert sweep.run(square, range(6), keys(range(6))) == Sweep(jobs=1).run(
            square, range(6), keys(range(6))
        )


def test_a_dask_cluster_that_does_not_answer_is_named():
    pytest.importorskip("distributed", reason="distributed comes with the extra `dask`")
    with pytest.raises(BadInputError, match=r"`dask=tcp://127\.0\.0\.1:9`: no Dask scheduler answers"):
        Sweep(dask="tcp://127.0.0.1:9")


def test_dask_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr("tangram_sim.studies.sweep.find_spec", lambda name: None)
    with pytest.raises(BadInputError, match=r"tangram-sim\[dask\]"):
        Sweep(dask="tcp://127.0.0.1:9")


def hasty(item: int, deadline: Deadline) -> dict[str, int | bool]:
    """Says of odd items that it had too little time."""
    return {"item": item, STOPPED: bool(item % 2)}


def test_an_answer_that_was_cut_short_is_not_kept(tmp_path):
    """Asked again without a limit, the search is made anew."""
    sweep, asked = Sweep(Cache(tmp_path), jobs=1), [content_key({"item": item}) for item in range(2)]
    assert sweep.run(hasty, [0, 1], asked) == [{"item": 0, STOPPED: False}, {"item": 1, STOPPED: True}]
    again = Sweep(Cache(tmp_path), jobs=1)
    again.run(hasty, [0, 1], asked)
    assert (again.kept, again.made) == (1, 1)


LONG_S = 60.0  # nobody waits so long


def patient(item: float, deadline: Deadline) -> dict[str, float]:
    """Works for so many seconds, or until time is over."""
    begun = time.monotonic()
    while not deadline.over() and time.monotonic() - begun < item:
        time.sleep(0.01)
    return {"passed": time.monotonic() - begun}


def test_several_processes_end_with_the_limit():
    """Those at work answer with what they have; those that hear nothing are not waited for."""
    pytest.importorskip("joblib", reason="joblib comes with the extra `sweep`")
    Sweep(jobs=2).run(patient, [0.0, 0.0], ["a", "b"])  # the processes are there
    deadline = Deadline(1.0)
    answers = Sweep(jobs=2).run(patient, [LONG_S] * 4, ["c", "d", "e", "f"], deadline=deadline)
    assert deadline.over()
    assert any(answer is not None for answer in answers)
    assert all(answer is None or answer["passed"] < LONG_S for answer in answers)


def test_ctrl_c_ends_the_wait_for_other_processes():
    """What had arrived is the answer."""
    pytest.importorskip("joblib", reason="joblib comes with the extra `sweep`")
    with Deadline().hearing_interrupts() as deadline:
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        answers = Sweep(jobs=2).run(patient, [0.0, LONG_S, LONG_S], ["a", "b", "c"], deadline=deadline)
    assert answers[0] is not None
    assert answers[1] is answers[2] is None
    assert deadline.interrupted
