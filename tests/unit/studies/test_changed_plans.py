"""Plan files that were changed since they were written: every verb that reads one says so."""

import json
from pathlib import Path

import pytest

from tangram_sim.digests import ChangedFileWarning
from tangram_sim.studies.planfile import read_plan
from tests.commands import files, tangram
from tests.fuzz.corruptions import OF_PLANS, Bench


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("sound")
    model, cluster = files(folder)
    words = ("--tp", 1, "--pp", 2, "--dp", 4, "--global-batch", 8)
    assert tangram("estimate", model, cluster, *words, "-o", folder / "plan.json").code == 0
    return (folder / "plan.json").read_text()


@pytest.mark.parametrize("command", OF_PLANS, ids=" ".join)
def test_every_verb_says_that_its_plan_file_was_changed(
    sound: str, tmp_path: Path, command: tuple[str, ...]
) -> None:
    path = tmp_path / "plan.json"
    words = [path if word == "PLAN" else word for word in command]
    path.write_text(sound)
    assert "changed since" not in (before := tangram(*words)).out + before.err
    path.write_text(sound.replace('"mfu": 0.', '"mfu": 0.9'))
    after = tangram(*words)
    assert after.code == 0, after.err
    assert "changed since" in after.out + after.err


def test_what_a_changed_file_says_was_proved_is_not_handed_on(sound: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    data = json.loads(sound)
    data["lower_bound_step_s"] = data["step_s"]
    path.write_text(json.dumps(data))
    found = tangram("simulate", path, "--json").json
    assert found["lower_bound_step_s"] < data["step_s"]
    assert found["findings"][0]["code"] == "file-was-changed"


def test_figures_of_a_file_without_a_digest_are_held_against_its_decisions(
    sound: str, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    data = json.loads(sound)
    del data["digest"]
    path.write_text(json.dumps(data))
    assert read_plan(path).step_s == data["step_s"], "as files of before are"
    assert tangram("simulate", path, "--json").json["findings"] == data["findings"]
    data["mfu"] *= 0.9
    path.write_text(json.dumps(data))
    (finding, *_) = tangram("simulate", path, "--json").json["findings"]
    assert finding["code"] == "figures-do-not-replay"
    assert finding["figures"]["names"] == ["mfu"]


def test_spacing_and_order_of_keys_change_no_plan(sound: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(json.loads(sound), sort_keys=True, indent=7))
    read_plan(path)
    path.write_text(sound.replace('"gpus_total": 12', '"gpus_total": 13'))
    with pytest.warns(ChangedFileWarning):
        read_plan(path)


@pytest.mark.slow
def test_no_corruption_of_caches_and_plan_files_passes_silently(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    found = [bench.case(number, seed=5) for number in range(60)]
    assert [each for each in found if each.outcome.startswith(("silent", "traceback"))] == []
