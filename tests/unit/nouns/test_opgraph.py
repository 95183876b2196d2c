"""The op graph: what the table refuses, and that what people see is what the columns hold."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

from tangram_sim.errors import BadInputError
from tangram_sim.graph_builder import GraphBuilder
from tangram_sim.opgraph import OpGraph, SharedLink, op_graph, previous_on_resource


def small() -> OpGraph:
    builder = GraphBuilder()
    wire = builder.link("nic", 10e9)
    builder.device("gpu 0", initial_bytes=7.0)
    gemm = builder.op(
        "gemm", "gpu 0/compute", 2.0, factor="gemm h100", device="gpu 0", memory_start_bytes=5.0
    )
    send = builder.op("send", "gpu 0/wire", 1.0, after=[gemm], bytes=1e9, links=[wire], label="halo")
    builder.op("gemm", "gpu 0/compute", 3.0, after=[send], device="gpu 0", memory_end_bytes=-5.0)
    return builder.freeze()


def test_an_op_shown_to_people_says_what_was_built() -> None:
    graph = small()
    send = graph.op(1)
    assert (send.label, send.kind, send.resource, send.predecessors) == ("halo", "send", "gpu 0/wire", (0,))
    assert (send.bytes, send.links, send.device, send.factor) == (1e9, ("nic",), "", "")
    first = graph.op(0)
    assert (first.device, first.memory_start_bytes, first.factor) == ("gpu 0", 5.0, "gemm h100")
    assert graph.op(2).label == "gemm 2"
    assert graph.memory_initial_bytes.tolist() == [7.0]
    assert len(graph) == 3


def test_the_previous_op_on_a_resource_is_the_nearest_with_a_smaller_index() -> None:
    resource = np.array([0, 1, 0, 2, 1, 0], np.int32)
    assert previous_on_resource(resource).tolist() == [-1, -1, 0, -1, 1, 2]
    assert small().resource_previous.tolist() == [-1, -1, 0]


def test_columns_cannot_be_changed_under_a_shared_template() -> None:
    with pytest.raises(ValueError, match="read-only"):
        small().duration_s[0] = 1.0


def test_the_callers_own_array_stays_writable() -> None:
    durations = np.ones(3)
    graph = small().with_durations(durations)
    durations[0] = 2.0
    assert not graph.duration_s.flags.writeable


def test_with_durations_changes_durations_and_nothing_else() -> None:
    graph = small()
    other = graph.with_durations(np.array([1.0, 0.0, 4.0]))
    assert other.duration_s.tolist() == [1.0, 0.0, 4.0]
    assert other.pred is graph.pred
    assert other.resource_previous is graph.resource_previous


def test_pickling_keeps_values_names_and_the_read_only_flag() -> None:
    """A worker process must not compile a second version of the engine for writable columns."""
    graph = small()
    copy = pickle.loads(pickle.dumps(graph))
    assert [copy.op(i) for i in range(3)] == [graph.op(i) for i in range(3)]
    assert copy.links == (SharedLink("nic", 10e9),)
    assert not copy.pred_ptr.flags.writeable
    assert copy.factor.dtype == np.int16


@pytest.mark.parametrize("bad", [[1.0, 2.0], [1.0, -1.0, 1.0], [1.0, np.nan, 1.0], [1.0, np.inf, 1.0]])
def test_bad_durations_are_refused(bad: list[float]) -> None:
    with pytest.raises(BadInputError, match="duration_s"):
        small().with_durations(np.array(bad))


GOOD = {
    "resource": [0, 0],
    "resources": ("gpu",),
    "duration_s": [1.0, 1.0],
    "pred_ptr": [0, 0, 1],
    "pred": [0],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pred": [1]}, "op 1 waits for op 1; predecessors need smaller indices"),
        ({"pred": [-1]}, "waits for op -1"),
        ({"pred_ptr": [0, 1, 1], "pred": [1]}, "op 0 waits for op 1"),
        ({"pred_ptr": [0, 1]}, "pred_ptr"),
        ({"pred_ptr": [0, 2, 1]}, "pred_ptr must rise"),
        ({"resource": [0, 1]}, "column 'resource' holds 0 to 1, but its table has 1 rows"),
        ({"resource": [0, -1]}, "column 'resource'"),
        ({"kind": [0, 3]}, "column 'kind'"),
        ({"device": [0, -1]}, "column 'device'"),
        ({"factor": [-2, -1]}, "column 'factor'"),
        ({"link": [0], "link_ptr": [0, 0, 1]}, "column 'link'"),
        ({"duration_s": [1.0, -1.0]}, "duration_s of op 1 is -1.0"),
        ({"bytes": [np.nan, 0.0]}, "bytes of op 0 is nan"),
        ({"memory_start_bytes": [np.inf, 0.0]}, "memory_start_bytes"),
        ({"memory_initial_bytes": [1.0]}, "memory_initial_bytes"),
        ({"links": [SharedLink("nic", 0.0)]}, "link 'nic' has 0.0 bytes/s"),
    ],
)
def test_rows_that_make_no_sense_are_refused(change: dict[str, object], message: str) -> None:
    op_graph(**GOOD)  # type: ignore[arg-type] # the base of the parametrisation is sound
    with pytest.raises(BadInputError, match=message.replace("[", r"\[")):
        op_graph(**(GOOD | change))  # type: ignore[arg-type] # wrong on purpose


def test_importing_graph_schedules_and_engines_loads_no_heavy_library() -> None:
    """House rule: numba (compiler) and simpy are loaded on first use only."""
    code = (
        "import sys, tangram_sim.opgraph, tangram_sim.training.schedules, tangram_sim.sim\n"
        "print([m for m in ('numba', 'simpy', 'pandas', 'torch', 'scipy') if m in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
