"""What the verbs of serving say of how far they are."""

from pathlib import Path

from tangram_sim.cli.progress import listening
from tests.commands import tangram

FLEET = "replicas:\n  - {name: a, costs: {step_s: 0.01, prompt_s: 2.0e-5, kv_blocks: 4000}}\n"
RUNS = """\
gpu,model,precision,engine,tp,scenario,concurrency,isl,osl,tpot_ms
H100,llama3-8b,bf16,vllm,1,closed loop,8,1024,256,8.1
H100,llama3-8b,bf16,vllm,2,closed loop,8,1024,256,5.1
"""


def told(*words: object) -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = []
    with listening(lambda done, total, what: found.append((done, total, what))):
        assert tangram(*words).code == 0
    return found


def test_a_simulation_tells_requests_and_replicas(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    asked = ("serve", "simulate", fleet, "--rate", "5", "--requests", "1000", "--isl", "20", "--osl", "5")
    found = told(*asked, "--router", "least_outstanding")
    assert found[:2] == [(500, 1000, "requests sent"), (1000, 1000, "requests sent")]
    assert found[-1] == (1, 1, "replicas played to their end")


def test_validation_and_calibration_tell_runs(tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    table.write_text(RUNS)
    assert told("serve", "validate", table) == [(1, 2, "runs predicted"), (2, 2, "runs predicted")]
    assert told("serve", "calibrate", table)[-1] == (2, 2, "runs predicted")
