"""Memory over time, and the trace that people open in Perfetto."""

import json
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

from tangram_sim.graph_builder import GraphBuilder
from tangram_sim.opgraph import OpGraph
from tangram_sim.sim import memory_timeline, peak_memory, play, trace_events, trace_json
from tangram_sim.training.schedules import StageTimes, step_template


def peak(builder: GraphBuilder) -> list[float]:
    return [float(most) for most in peak_memory(play(builder.freeze()))]


def test_memory_starts_at_its_initial_value_and_follows_the_deltas() -> None:
    builder = GraphBuilder()
    builder.device("gpu", initial_bytes=100.0)
    builder.op("F", "gpu", 2.0, device="gpu", memory_start_bytes=10.0, memory_end_bytes=-3.0)
    builder.op("B", "gpu", 1.0, device="gpu", memory_start_bytes=5.0, memory_end_bytes=-12.0)
    (memory,) = memory_timeline(play(builder.freeze()))
    assert memory.device == "gpu"
    assert memory.times_s.tolist() == [0.0, 0.0, 2.0, 2.0, 3.0]
    assert memory.bytes.tolist() == [100.0, 110.0, 107.0, 112.0, 100.0]


def test_what_ends_at_an_instant_frees_before_what_starts_allocates() -> None:
    builder = GraphBuilder()
    for _ in range(3):
        builder.op("F", "gpu", 1.0, device="gpu", memory_start_bytes=8.0, memory_end_bytes=-8.0)
    assert peak(builder) == [8.0]


def test_the_free_comes_first_even_from_a_stream_listed_later() -> None:
    builder = GraphBuilder()
    first = builder.op("wait", "a", 1.0)
    builder.op("F", "a", 1.0, after=[first], device="gpu", memory_start_bytes=8.0)
    builder.op("copy", "b", 1.0, device="gpu", memory_start_bytes=8.0, memory_end_bytes=-8.0)
    assert peak(builder) == [8.0]


def test_an_op_of_zero_duration_allocates_before_it_frees() -> None:
    builder = GraphBuilder()
    builder.op("F", "gpu", 1.0, device="gpu", memory_start_bytes=1.0)
    builder.op("workspace", "gpu", 0.0, device="gpu", memory_start_bytes=8.0, memory_end_bytes=-8.0)
    builder.op("workspace", "gpu", 0.0, device="gpu", memory_start_bytes=4.0, memory_end_bytes=-4.0)
    builder.op("B", "gpu", 1.0, device="gpu", memory_end_bytes=-1.0)
    (memory,) = memory_timeline(play(builder.freeze()))
    assert memory.bytes.tolist() == [0.0, 1.0, 9.0, 1.0, 5.0, 1.0, 0.0]


def test_devices_have_accounts_of_their_own_and_ops_without_one_change_none() -> None:
    builder = GraphBuilder()
    builder.device("idle", initial_bytes=2.0)
    builder.op("F", "a", 1.0, device="gpu 0", memory_start_bytes=8.0)
    builder.op("F", "b", 1.0, device="gpu 1", memory_start_bytes=3.0, memory_end_bytes=4.0)
    builder.op("F", "c", 1.0, memory_start_bytes=1000.0)
    assert peak(builder) == [2.0, 8.0, 7.0]


def step() -> OpGraph:
    template = step_template("1f1b", 3, 5)
    times = StageTimes.equal(
        3,
        forward_s=1 / 3000,
        backward_input_s=1 / 7000,
        backward_weight_s=1e-4,
        send_s=1e-5,
        sync_s=1e-3,
        optimizer_s=2e-3,
    )
    return template.with_memory(np.full(3, 1e9), np.full(3, 2.5e8)).with_durations(template.durations(times))


def test_the_trace_shows_every_op_once_with_its_time_on_its_track() -> None:
    timeline = play(step())
    graph = timeline.graph
    events = json.loads(trace_json(timeline))["traceEvents"]
    ops = [event for event in events if event["ph"] == "X"]
    assert [event["args"]["op"] for event in ops] == list(range(len(graph)))
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    for event in ops:
        op = graph.op(event["args"]["op"])
        assert f"{processes[event['pid']]}/{names[event['pid'], event['tid']]}" == op.resource
        assert (event["name"], event["cat"]) == (op.label, op.kind)
        assert event["ts"] == pytest.approx(timeline.start_s[op.index] * 1e6, abs=1e-3)
        assert event["dur"] == pytest.approx(op.duration_s * 1e6, abs=2e-3)
    total = sum(event["dur"] for event in ops)
    assert total == pytest.approx(graph.duration_s.sum() * 1e6, abs=1e-3 * len(graph))


def test_ops_on_one_track_of_the_trace_do_not_overlap() -> None:
    """In whole nanoseconds, Perfetto's resolution: rounding must not make slices nest."""
    tracks = defaultdict(list)
    for event in trace_events(play(step())):
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            tracks[event["tid"]].append((start, start + round(event["dur"] * 1000)))
    assert len(tracks) == 3 + 2 + 2 + 3
    for spans in tracks.values():
        for (_, end), (start, _) in pairwise(spans):
            assert end <= start


def test_the_trace_counts_memory_in_the_process_of_its_stage() -> None:
    timeline = play(step())
    events = trace_events(timeline)
    processes = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    for stage, memory in enumerate(memory_timeline(timeline)):
        counters = [e for e in events if e["ph"] == "C" and e["pid"] == processes[f"stage {stage}"]]
        assert [e["args"]["bytes"] for e in counters] == memory.bytes.tolist()
        assert {e["name"] for e in counters} == {f"memory stage {stage}"}


def test_resources_without_a_process_and_details_of_transfers_are_shown() -> None:
    builder = GraphBuilder()
    link = builder.link("nic", 1.0)
    builder.op("send", "wire", 1.0, bytes=5.0, links=[link], factor="ib")
    events = trace_events(play(builder.freeze()))
    assert {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "resources"}} in events
    (send,) = (event for event in events if event["ph"] == "X")
    assert send["dur"] == 5e6
    assert send["args"] == {"op": 0, "uncontended_s": 1.0, "factor": "ib", "bytes": 5.0, "links": ["nic"]}


def test_the_same_timeline_gives_the_same_bytes() -> None:
    assert trace_json(play(step())) == trace_json(play(step()))
