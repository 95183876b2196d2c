"""Traces of other tools: our own timelines, torch.profiler's files; and the verb that reads them."""

import json
from pathlib import Path

import pytest

from tangram_sim.errors import BadInputError
from tangram_sim.reliability.stragglers.whatif import analyse
from tangram_sim.reliability.traces.reading import read_trace
from tangram_sim.reliability.traces.tables import read_table
from tangram_sim.sim import fast
from tangram_sim.sim.perfetto import trace_json
from tangram_sim.training.schedules.step import StageTimes, step_template
from tests.commands import tangram

from .traces import rows_of, shared, written


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("tied", [False, True])
def test_our_own_timeline_is_replayed_to_its_step(tmp_path: Path, schedule: str, tied: bool) -> None:
    times = StageTimes(
        forward_s=[[0.013], [0.011], [0.0171]],  # type: ignore[arg-type]
        backward_input_s=[[0.02], [0.0217], [0.031]],  # type: ignore[arg-type]
        backward_weight_s=[[0.001], [0.002], [0.0013]],  # type: ignore[arg-type]
        send_forward_s=[0.003, 0.0007, 0],  # type: ignore[arg-type]
        send_backward_s=[0.0031, 0.0009, 0],  # type: ignore[arg-type]
        sync_s=[0.01, 0.02, 0.015],  # type: ignore[arg-type]
        optimizer_s=[0.004, 0.004, 0.006],  # type: ignore[arg-type]
        tied_s=0.0123,
    )
    played = fast.play(step_template(schedule, 3, 5, tied=tied).with_durations(times))
    path = tmp_path / "timeline.json"
    path.write_text(trace_json(played))
    found = analyse(read_trace([path]))
    assert found.replayed_step_s == pytest.approx(played.makespan_s, rel=1e-9)
    assert found.trace.dp == 1


def test_a_split_backward_is_not_replayed(tmp_path: Path) -> None:
    times = StageTimes.equal(2, forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    path = tmp_path / "timeline.json"
    path.write_text(trace_json(fast.play(step_template("zb-h1", 2, 4).with_durations(times))))
    with pytest.raises(BadInputError, match="'W' cannot be replayed"):
        read_trace([path])


def profiles(folder: Path, dp: int = 2, stages: int = 3, steps: int = 2, slow: float = 2.0) -> Path:
    """Files as torch.profiler writes them, of a made-up run: one per rank."""
    rows = rows_of(dp=dp, stages=stages, steps=steps, slow={(1, 0): slow})
    folder.mkdir()
    for stage in range(stages):
        for replica in range(dp):
            events = []
            for row in rows:
                if (row["dp"], row["stage"]) != (replica, stage) or row["op"] == "AG":
                    continue
                began = 5e6 + int(row["step"]) * 1e6
                name = {"F": f"PP:{stage}F{row['seq']}", "B": f"Backward {row['seq']}"}.get(
                    str(row["op"]), "Optimizer.step#AdamW.step"
                )
                events.append(
                    {
                        "ph": "X",
                        "cat": "user_annotation",
                        "name": name,
                        "ts": began + float(row["start"]) * 1e6,
                        "dur": float(row["dur"]) * 1e6,
                    }
                )
            for step in range(steps):
                events.append(
                    {
                        "ph": "X",
                        "cat": "user_annotation",
                        "name": f"ProfilerStep#{step}",
                        "ts": 5e6 + step * 1e6,
                        "dur": 9e5,
                    }
                )
            rank = stage * dp + replica
            about = {"backend": "gloo", "rank": rank, "world_size": dp * stages}
            (folder / f"rank{rank}.json").write_text(
                json.dumps({"schemaVersion": 1, "distributedInfo": about, "traceEvents": events})
            )
    return folder


def test_profiles_of_all_ranks_make_a_trace(tmp_path: Path) -> None:
    found = analyse(read_trace([profiles(tmp_path / "p")], stages=3))
    assert (found.trace.dp, found.trace.stages, len(found.trace.steps)) == (2, 3, 2)
    assert found.pattern.name == "worker"
    assert (found.pattern.dp, found.pattern.stage) == (1, 0)


def test_profiles_that_do_not_hold_together_are_refused(tmp_path: Path) -> None:
    folder = profiles(tmp_path / "p")
    with pytest.raises(BadInputError, match="no multiple of 4"):
        read_trace([folder], stages=4)
    with pytest.raises(BadInputError, match="another `pp=`"):
        read_trace([folder], stages=2)
    (folder / "rank3.json").unlink()
    with pytest.raises(BadInputError, match="missing: rank 3"):
        read_trace([folder], stages=3)
    (folder / "rank0.json").write_text('{"traceEvents": []}')
    with pytest.raises(BadInputError, match="which rank"):
        read_trace([folder], stages=3)


@pytest.mark.parametrize("text", ["{", '{"a": 1}', '{"traceEvents": [1]}'])
def test_files_that_are_no_trace_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(BadInputError, match="file per rank"):
        read_trace([path])


def test_a_table_with_a_figure_that_no_trace_counts_to_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"step,dp,stage,op,seq,start_us,dur_us\n0,0,0,F,{10**19},0,10\n")
    with pytest.raises(BadInputError, match="line 2"):
        read_trace([path])


def test_the_verb_answers_in_words_and_in_json(tmp_path: Path) -> None:
    path = written(rows_of(dp=2, slow={(1, 1): 2.0}), tmp_path / "t.csv")
    said = tangram("stragglers", path, "--layers", "4,4,4")
    assert said.code == 0
    assert "worker (dp 1, stage 1) explains" in said.out
    found = tangram("stragglers", path, "--json", "-o", tmp_path / "a.json").json
    assert (found["dp"], found["pp"], found["steps"], found["pattern"]) == (2, 3, 3, "worker")
    assert {"stage 0", "dp 1", "forward-compute"} <= found["alone"].keys()
    assert found["slowdown"] == pytest.approx(found["replayed_step_s"] / found["ideal_step_s"])
    assert {"name", "step_s", "gain", "price_s"} <= found["remedies"][0].keys()
    assert json.loads((tmp_path / "a.json").read_text()) == found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.csv"], "no such file"),
        (["t.csv", "--layers", "4,4"], "the trace has 3"),
        (["t.csv", "--layers", "4,x,4"], "--layers"),
        (["t.csv", "--max-pruned", "2"], "--max-pruned"),
        (["t.csv", "--tp", "0"], "--tp"),
        (["t.csv", "--sequences", "t.csv"], "tokens per sequence"),
        (["t.csv", "--restart-s", "-1"], "--restart-s"),
    ],
)
def test_the_verb_refuses_what_it_cannot_use(tmp_path: Path, arguments: list[str], message: str) -> None:
    written(rows_of(), tmp_path / "t.csv")
    given = [str(tmp_path / word) if word.endswith(".csv") else word for word in arguments]
    refused = tangram("stragglers", *given)
    assert refused.code == 2
    assert message in refused.err


def test_the_lengths_of_sequences_are_used(tmp_path: Path) -> None:
    path = written(rows_of(dp=1, stages=1, microbatches=2, steps=2), tmp_path / "t.csv")
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("# one line per microbatch\n512 512\n1024\n")
    found = tangram("stragglers", path, "--sequences", lengths, "--json").json
    assert any(remedy["name"] == "re-sort sequences" for remedy in found["remedies"])


def test_moving_layers_of_a_measured_run_from_the_command_line() -> None:
    path = shared("traces/straggler_trace_ST.csv")
    found = tangram("stragglers", path, "--layers", "9,9,9,9", "--json").json
    assert found["remedies"][0]["name"] == "move layers"
    assert found["remedies"][0]["gain"] == pytest.approx(1.196, abs=0.01)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("0,0,0,F,0,0,1\n0,0,0,F,x,0,1\n", "line 3 is '0,0,0,F,x,0,1'"),
        ("0,0,0,F,0,0,1\n\n0,0,0,F,1.5,0,1\n", "line 4 is"),
        ("0,0,0,F,0,0\n", "line 2 is"),
        ("0,0,0,QQ,0,0,1\n", "line 2"),
        ('0,0,0,F,0,0,"1\n', "not CSV"),
    ],
)
def test_a_table_names_the_line_that_cannot_be_read(tmp_path, lines: str, said: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("step,dp,stage,op,seq,start_us,dur_us\n" + lines)
    with pytest.raises(BadInputError, match=said):
        read_table(path)
