"""Published runs on mixed clusters: reading free text, the engine's lockstep, scores, bad files, accuracy."""

import csv
import json
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pytest
from tangram_validate.mixed_runs.lockstep import lockstep_graph, pass_of
from tangram_validate.mixed_runs.predict import MixedPrediction, predict_row
from tangram_validate.mixed_runs.reading import MixedRun, read_run
from tangram_validate.mixed_runs.report import kendall_tau, regret
from tangram_validate.mixed_runs.seats import StageReplica, block_bounds, replicas_of
from tangram_validate.published.cells import CellError
from tangram_validate.published.table import Problem

from tangram_sim.hwdb import Hwdb
from tangram_sim.sim import fast
from tangram_sim.training.schedules import StageTimes
from tangram_sim.training.step.lowered import Lowering
from tangram_sim.training.step.side_by_side import lower_plan, price_plan
from tests.commands import tangram
from tests.places import ROOT, SHARED

HWDB = Hwdb.load()
FACTS = SHARED / "data" / "heterogeneous_runs.csv"
KINDS = ["RTX-3090", "RTX-2080", "Titan-RTX"]
ROW = {
    "id": "made-1",
    "source_id": "made",
    "cluster": json.dumps(
        [
            {"gpu": "V100-16GB", "nodes": 1, "gpus_per_node": 4, "instance": "p3.8xlarge"},
            {"gpu": "T4-16GB", "nodes": 1, "gpus_per_node": 4},
        ]
    ),
    "intra_link": "V100: NVLink; T4: PCIe",
    "inter_link": "V100: 10 Gb/s; T4: 50 Gb/s",
    "framework": "DeepSpeed/Megatron (AMP fork)",
    "layers": "8",
    "hidden": "1024",
    "heads": "16",
    "vocab": "51200",
    "seq_len": "1024",
    "tp": "1",
    "pp": "2",
    "dp": "4",
    "mbs": "1",
    "gbs": "16",
    "stage_layers": "[0, 5, 10]",
    "stage_placement": "stage 0: 3x V100 + T4; stage 1: T4 x 3, V100",
    "iter_time_s": "1.0",
    "predicted_by_source_s": "0.5",
}


def run(**cells: str) -> MixedRun:
    read = read_run({**ROW, **cells}, HWDB)
    assert isinstance(read, MixedRun), read
    return read


@pytest.mark.parametrize(
    ("text", "pp", "bounds"),
    [
        ("[0, 7, 14, 20, 30]", 4, [(0, 5), (5, 12), (12, 18), (18, 24)]),  # two units in front, four behind
        ("[0, 13, 26]", 2, [(0, 12), (12, 24)]),  # embedding and head
        ("[12, 12]", 2, [(0, 12), (12, 24)]),
        (json.dumps([[0, 1, 2, 3], list(range(4, 24))]), 2, [(0, 4), (4, 24)]),
        ("", 3, [(0, 8), (8, 16), (16, 24)]),
    ],
)
def test_stage_layers_in_the_sources_units(text: str, pp: int, bounds: list[tuple[int, int]]) -> None:
    """Boundaries, counts, lists of layers and blanks become blocks; small layers go to the ends."""
    assert block_bounds(text, 24, pp) == bounds


@pytest.mark.parametrize(
    "text", ["[0, 10, 30, 40]", "[0, 20, 50]", "nonsense", "[1.5, 2]", '{"a": 1}', "[5, -2]"]
)
def test_stage_layers_that_mean_nothing_are_a_reason(text: str) -> None:
    """Not a guess."""
    with pytest.raises(CellError, match="stage_layers"):
        block_bounds(text, 24, 2)


@pytest.mark.parametrize(
    "text",
    [
        "stage 0: 2x RTX-3090; stage 1: RTX-2080 + Titan-RTX",
        "RTX3090 x 2 | RTX 2080, Titan RTX",
        "L13[2xRTX-3090/tp2] L13[1xRTX-2080/tp2,1xTitan-RTX/tp2]",
        '[["RTX-3090", "RTX-3090"], ["RTX-2080", "Titan-RTX"]]',
        '[[{"gpu": "RTX-3090"}, ["RTX-3090", 2]], [["RTX-2080", 2, "zone"], {"gpu": "Titan-RTX", "tp": 2}]]',
        "stage0 RTX-3090, RTX-3090 stage1 RTX-2080 tp2, Titan-RTX tp=2",
    ],
)
def test_placements_are_understood(text: str) -> None:
    """Stages and replicas in words and in JSON; counts, aliases and degrees of their own."""
    found = replicas_of(text, KINDS, 2, 2, 2, HWDB)
    assert found == [
        [StageReplica("RTX-3090", 2)] * 2,
        [StageReplica("RTX-2080", 2), StageReplica("Titan-RTX", 2)],
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stage 0: 3x RTX-3090 | stage 1: RTX-2080", "lists 3 replicas"),
        ("RTX-3090 | RTX-3090 | RTX-3090", "lists 3 stages"),
        ("stage 0: H100 stage 1: H100", "no GPU of the cluster"),
        ('[["H100-SXM5-80GB"], ["RTX-3090"]]', "the cluster has"),
        ("[[1], [2]]", "is no replica"),
    ],
)
def test_placements_that_do_not_fit_are_a_reason(text: str, words: str) -> None:
    """Wrong numbers, wrong kinds."""
    with pytest.raises(CellError, match=words):
        replicas_of(text, KINDS, 2, 2, 2, HWDB)


def test_a_row_becomes_a_mixed_plan() -> None:
    """Parts by kind in replica order, ranks of that kind, the fork's reduction in fp32, links by kind."""
    found = run()
    stages = found.plan.pipelines[0].stages
    assert [[part.ranks for part in stage.parts] for stage in stages] == [
        [(0, 1, 2), (4,)],
        [(5, 6, 7), (3,)],
    ]
    assert [stage.chunks for stage in stages] == [((0, 4),), ((4, 8),)]
    assert found.plan.job.dtype == "fp16"
    assert found.plan.job.gradient_bytes == 4.0
    assert not found.plan.job.flash_attention
    node = found.plan.cluster.groups[1].node
    assert node.intra.name == "PCIe-SHM"
    assert node.nic_bytes_per_s == pytest.approx(6.25e9)
    assert price_plan(found.plan, HWDB).fits()


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"cluster": "[]"}, "a list of objects"),
        ({"cluster": "[{"}, "not JSON"),
        ({"cluster": "8 + 8"}, "'8' is no group of GPUs"),
        ({"cluster": '[{"gpu": "T4", "nodes": 0, "gpus_per_node": 4}]'}, "nodes is 0"),
        ({"cluster": '[{"gpu": "Quantum-9", "nodes": 2, "gpus_per_node": 4}]'}, "Quantum-9"),
        ({"gpus": "16"}, "cluster holds 8 GPUs"),
        ({"tp": ""}, "tp not stated"),
        ({"dp": "5", "gbs": "20", "stage_placement": ""}, "more GPUs than the cluster"),
        ({"gbs": "4000000"}, "too many to play"),
        ({"stage_placement": "stage 0: 4x V100 stage 1: 4x V100"}, "more V100"),
        ({"iter_time_s": "nan"}, "finite"),
        ({"recompute": "sometimes"}, "recompute"),
    ],
)
def test_rows_that_cannot_be_predicted_say_why(cells: dict[str, str], words: str) -> None:
    """Every problem is a reason in the report, never a traceback and never a silent skip."""
    read = predict_row({**ROW, **cells}, HWDB)
    assert isinstance(read, Problem)
    assert words in read.reason


def test_a_batch_that_does_not_divide_is_played_as_the_next_that_does() -> None:
    """15 sequences over 4 replicas: four rounds, and the row says so."""
    found = run(gbs="15")
    assert found.plan.job.global_batch == 16
    assert any("15 is no multiple of mbs 1 x dp 4" in note for note in found.assumed)


@pytest.mark.parametrize(
    "text",
    [
        '{"RTX-3090": 16, "Titan-RTX": 8}',
        "RTX-3090:16, Titan-RTX:8",
        "16x RTX-3090 + 8x Titan RTX",
        "2 nodes of 8 RTX 3090; 1x8 Titan-RTX",
        "RTX 3090 x 16 and 8 TitanRTX",
    ],
)
def test_clusters_in_words_are_those_in_json(text: str) -> None:
    """A map of counts, GPU:count, counts in front or behind: 16 and 8 GPUs in nodes of eight."""
    listed = [{"gpu": "RTX-3090", "nodes": 2, "gpus_per_node": 8}, {"gpu": "Titan-RTX", "nodes": 1}]
    listed[1]["gpus_per_node"] = 8
    layout = {"framework": "Sailor", "intra_link": "", "inter_link": "", "pp": "2", "dp": "12", "gbs": "96"}
    planned = "mbs=1 pp=2 dp=[12,12] L5[8xRTX-3090/tp1,4xTitan-RTX/tp1] L5[8xRTX-3090/tp1,4xTitan-RTX/tp1]"
    cells = {**layout, "layers": "8", "stage_layers": "", "stage_placement": planned}
    found, expected = run(cluster=text, **cells), run(cluster=json.dumps(listed), **cells)
    assert found.plan.cluster == expected.plan.cluster
    assert found.plan.pipelines == expected.plan.pipelines
    assert [stage.chunks for stage in found.plan.pipelines[0].stages] == [((0, 4),), ((4, 8),)]


@pytest.mark.parametrize(("stages", "count"), [(1, 3), (2, 1), (3, 4), (4, 2), (5, 7)])
def test_the_engines_rounds_run_every_pass_once_and_in_order(stages: int, count: int) -> None:
    """Forward before backward, a stage after the one before it, gradients after the stage behind."""
    when: dict[tuple[str, int, int], int] = {}
    for round_ in range(2 * (count + stages - 1)):
        for stage in range(stages):
            microbatch, forward = pass_of(round_, stage, stages)
            if 0 <= microbatch < count:
                assert when.setdefault(("F" if forward else "B", stage, microbatch), round_) == round_
    assert len(when) == 2 * stages * count
    for (kind, stage, microbatch), round_ in when.items():
        if kind == "F" and stage:
            assert when["F", stage - 1, microbatch] == round_ - 1
        if kind == "B" and stage < stages - 1:
            assert when["B", stage + 1, microbatch] == round_ - 1
        assert when["F", stage, microbatch] < when["B", stage, microbatch]


def played_s(stages: int, forward: float, backward: float) -> tuple[float, int]:
    """Seconds of equal stages without transfers under the engine's rounds, and the microbatches."""
    placed = {"pp": str(stages), "dp": str(8 // stages), "stage_layers": "", "stage_placement": ""}
    step = price_plan(run(**placed).plan, HWDB).steps[0]
    zero = np.zeros(stages)
    times = StageTimes(
        np.full((stages, 1), forward),
        np.full((stages, 1), backward),
        np.zeros((stages, 1)),
        *(zero, zero, zero, zero),
    )
    played = fast.play(lockstep_graph(replace(step, times=times)))
    return played.makespan_s, step.pipeline.microbatches


def test_lockstep_of_equal_stages() -> None:
    """With equal stages and free transfers the rounds take what 1F1B takes: (m + p - 1)(f + b)."""
    for stages in (2, 4, 8):
        for forward, backward in ((1.0, 1.0), (1.0, 2.0), (2.0, 1.0)):
            seconds, count = played_s(stages, forward, backward)
            assert seconds == pytest.approx((forward + backward) * (count + stages - 1))


def test_tau_and_regret_by_hand() -> None:
    """Against counting pairs, and ties."""
    measured = [1.0, 2.0, 3.0, 4.0]
    for order in permutations(measured):
        pairs = list(combinations(range(4), 2))
        agree = sum((order[a] - order[b]) * (measured[a] - measured[b]) > 0 for a, b in pairs)
        assert kendall_tau(order, measured) == pytest.approx((2 * agree - len(pairs)) / len(pairs))
    assert kendall_tau([1, 1], [1, 2]) is None
    assert kendall_tau([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / (6**0.5))
    assert regret([3.0, 1.0, 2.0], [1.0, 1.5, 2.0]) == pytest.approx(0.5)
    assert regret([1.0], [1.0]) is None


def test_the_command_scores_lists_and_writes(tmp_path: Path) -> None:
    """JSON keys as documented, reasons listed, every prediction in the CSV."""
    path, out = tmp_path / "runs.csv", tmp_path / "out.csv"
    rows = [ROW, {**ROW, "id": "made-2", "pp": "1", "dp": "8", "stage_layers": "", "stage_placement": ""}]
    rows += [{**ROW, "id": "bad", "cluster": '[{"gpu": "Quantum-9", "nodes": 2, "gpus_per_node": 4}]'}]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows(rows)
    finished = tangram("validate", "published-mixed", path, "--json", "-o", out)
    assert finished.code == 0, finished.err
    found = json.loads(finished.out)
    assert found["overall"]["n"] == 2
    assert {"median_ape", "kendall_tau", "top1_regret", "source_median_ape"} <= set(found["overall"])
    assert found["by_source"]["made"]["source_median_ape"] == pytest.approx(0.5)
    assert [row["id"] for row in found["unpredicted"]] == ["bad"]
    assert len(out.read_text().splitlines()) == 3
    shown = tangram("validate", "published-mixed", path)
    assert "Quantum-9" in shown.out


@pytest.mark.parametrize(
    ("text", "words"), [("", "not a table"), ("a,b\n1,2\n", "not a table"), ("gpu,gpus,tp,pp\n", "published")]
)
def test_files_of_another_kind_are_named(tmp_path: Path, text: str, words: str) -> None:
    """An empty file, another table, runs on one kind."""
    path = tmp_path / "x.csv"
    path.write_text(text)
    finished = tangram("validate", "published-mixed", path)
    assert finished.code == 2
    assert words in finished.err


@pytest.mark.skipif(not FACTS.exists(), reason="needs ../shared/data/heterogeneous_runs.csv")
def test_accuracy_on_the_shared_runs() -> None:
    """Median error within the target of 15 %, better than the source's own 23.5 %; ranking better too."""
    finished = tangram("validate", "published-mixed", FACTS, "--json")
    overall = json.loads(finished.out)["overall"]
    assert overall["n"] == 12
    assert overall["source_median_ape"] == pytest.approx(0.235, abs=0.001)
    assert overall["source_kendall_tau"] == pytest.approx(0.30, abs=0.01)
    assert overall["median_ape"] < 0.15
    assert overall["kendall_tau"] > overall["source_kendall_tau"]


def test_failed_runs_are_predicted_and_not_scored() -> None:
    """A run without a measured step has no error."""
    found = predict_row({**ROW, "iter_time_s": ""}, HWDB)
    assert isinstance(found, MixedPrediction)
    assert found.error is None
    assert found.source_error is None


SAILOR = {
    **ROW,
    "cluster": json.dumps([{"gpu": "RTX-2080", "nodes": 1, "gpus_per_node": 8}]),
    "intra_link": "",
    "inter_link": "",
    "framework": "Sailor (Megatron-DeepSpeed)",
    **{"layers": "24", "vocab": "50272", "seq_len": "2048"},
    **{"tp": "1", "pp": "1", "dp": "8", "mbs": "4", "gbs": "256"},
    "stage_layers": "[0, 26]",
    "stage_placement": "8x RTX-2080",
}


@pytest.mark.parametrize("kind", ["RTX-2080", "Titan-RTX", "RTX-3090"])
def test_a_sailor_run_without_pipeline_takes_what_its_profiled_layers_take(kind: str) -> None:
    """Blocks and head of the committed profiles, eight microbatches, an update; the rest is an all-reduce and
    the stack's factor: steps of that software were some 10 % longer than its profiles on another GPU kind."""
    path = ROOT / "traces" / "sailor" / "layer_profiles.csv"
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == "OPT-350" and row["gpu"] == kind]
    (row,) = (row for row in rows if (row["mbs"], row["tp"]) == ("4", "1"))
    passes = float(row["total_fwd_s"]) + float(row["total_bwd_s"])
    expected = 8 * passes + float(row["total_upd_s"])
    found = predict_row({key: value.replace("RTX-2080", kind) for key, value in SAILOR.items()}, HWDB)
    assert isinstance(found, MixedPrediction), found
    assert expected < found.step_s < expected * 1.25


def test_a_silent_row_means_the_sources_own_machines() -> None:
    """Their kinds by their names, their measured networks; a stated network wins, as do other frameworks."""
    silent = run(**SAILOR)
    (group,) = silent.plan.cluster.groups
    assert group.node.gpu.name == "RTX-2080Ti" and group.node.nic_bytes_per_s == pytest.approx(25e9 / 8)
    (loose,) = run(**{**SAILOR, "stage_placement": "8x RTX 2080"}).plan.pipelines[0].stages
    assert len(loose.ranks) == 8
    slow = {"cluster": SAILOR["cluster"].replace("RTX-2080", "RTX-3090"), "stage_placement": ""}
    assert run(**{**SAILOR, **slow}).plan.cluster.groups[0].node.nic_bytes_per_s == pytest.approx(1e9 / 8)
    stated = run(**{**SAILOR, "inter_link": "10 Gb/s"}).plan.cluster.groups[0].node
    assert stated.nic_bytes_per_s == pytest.approx(10e9 / 8)
    other = run(**{**SAILOR, "framework": "Megatron-LM"}).plan.cluster.groups[0].node
    assert other.gpu.name == "RTX-2080" and other.nic_bytes_per_s == pytest.approx(100e9 / 8)


def test_a_stage_with_both_ends_reduces_a_tied_matrix_once() -> None:
    """All gradients of one stage in one flat bucket: parameters x 4 bytes round a ring over two nodes."""
    read = run(**{"pp": "1", "dp": "8", "stage_layers": "[0, 10]", "stage_placement": ""})
    lowering = Lowering.of(read.plan, HWDB.with_rings_only())
    lowered = lower_plan(read.plan, lowering)
    seconds = float(lowered.steps[0].times.sync_s[0])
    model = read.plan.model
    assert model.tied
    ring = 2 * 7 / 8 * 4 * model.parameters / (0.95 * 10e9 / 8)  # the p3.8xlarge's port
    assert ring < seconds < 1.1 * ring
