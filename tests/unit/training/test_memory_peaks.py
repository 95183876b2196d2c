"""Peaks as tensors, allocator and driver hold them: what a stack adds, over the step, and the errors."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tangram_validate.calibration import memory
from tangram_validate.published import report
from tangram_validate.published.predict import predict_rows

from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.layers.atoms import atoms_of
from tangram_sim.layouts import Layout
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.studies import api
from tangram_sim.studies.memory_timeline import memory_csv, memory_rows
from tangram_sim.training.job import Job
from tangram_sim.training.plan import UNLIMITED, StagePrice
from tangram_sim.training.stage.pricing import Pricer
from tangram_sim.training.stage.state import held
from tests.commands import tangram
from tests.places import ROOT
from tests.unit.training.test_state_memory import BLOCK, GPT, HIDDEN, SEQ, setting

HWDB = Hwdb.load()
RUNS = ROOT / "traces" / "published" / "training_runs.csv"


def priced(static, activation, transient, fragmentation, capacity) -> StagePrice:
    return StagePrice(1.0, 1.0, 0.0, 0.0, 0.0, static, activation, transient, capacity, fragmentation)


@given(
    static=st.floats(0, 1e11),
    activation=st.floats(0, 1e11),
    transient=st.floats(0, 1e11),
    fragmentation=st.floats(0, 1),
    capacity=st.floats(1, 3e11),
)
def test_the_in_flight_limit_is_the_most_that_fits(static, activation, transient, fragmentation, capacity):
    stage = priced(static, max(activation, 1.0), transient, fragmentation, capacity)
    most = stage.in_flight_limit()
    assert 0 <= most <= UNLIMITED
    if most:
        assert stage.peak_bytes(most) <= capacity * (1 + 1e-9)
    if most < UNLIMITED:
        assert stage.peak_bytes(most + 1) > capacity * (1 - 1e-9)


def test_peaks_are_ordered_and_the_drivers_decides():
    """Tensors <= allocator <= driver; what is free of the GPU is the same counted either way."""
    cluster, model = load_cluster("azure-c1", HWDB), load_model("gpt3-6.7b")
    made = api.estimate(model, cluster, Job(global_batch=16), Uniform(tp=4, pp=4), hwdb=HWDB)
    step, data = made.forecast.step, made.document
    assert data.peak_memory_allocated_bytes <= data.peak_memory_reserved_bytes < data.peak_memory_bytes
    for number, stage in enumerate(data.stages):
        price = step.prices[number][0]
        free = stage.memory_capacity_bytes - stage.peak_memory_bytes
        assert free == pytest.approx(price.capacity_bytes - price.peak_bytes(step.in_flight[number]))
        grown = stage.peak_memory_reserved_bytes - stage.peak_memory_allocated_bytes
        coming = step.in_flight[number] * price.activation_bytes + price.transient_bytes
        assert grown == pytest.approx(price.fragmentation * coming)


class TestWhatStacksAdd:
    def test_deepspeed_keeps_gradient_copies_with_sharded_optimizers_only(self):
        """4 + 2 + 4 bytes beside weights, gradients and moments; without ZeRO the 4 of the recipe."""
        layouts = (Layout(dp=4), Layout(dp=4, zero_stage=1))
        for stack, master in (("generic", 4), ("megatron-deepspeed", 10), ("fsdp", 2)):
            where = setting(*layouts, microbatch=4, job=Job(seq=SEQ, dtype="fp16", stack=stack))
            per_parameter = held(where, BLOCK).static / BLOCK.parameters(HIDDEN)
            assert per_parameter == pytest.approx([2 + 2 + 4 + 8, 2 + 2 + (master + 8) / 4])

    def test_a_recipe_without_master_copy_has_none_anywhere(self):
        job = Job(seq=SEQ, dtype="fp32", stack="megatron-deepspeed")
        where = setting(Layout(dp=4, zero_stage=1), microbatch=4, job=job)
        assert held(where, BLOCK).static[0] / BLOCK.parameters(HIDDEN) == pytest.approx(4 + 4 + 8 / 4)

    def test_workspace_comes_off_what_models_can_use(self):
        generic, deepspeed = (
            setting(Layout(), job=Job(seq=SEQ, dtype="fp16", stack=stack)).rates
            for stack in ("generic", "megatron-deepspeed")
        )
        assert deepspeed.workspace_bytes > 1e9
        assert generic.usable_memory_bytes - deepspeed.usable_memory_bytes == pytest.approx(
            deepspeed.workspace_bytes - generic.workspace_bytes
        )


class TestGradientsBesideWiderOnes:
    def test_bf16_with_fp32_gradients_keeps_one_block_in_16_bits(self):
        where = setting(Layout(), gpu="A100-SXM4-80GB", job=Job(seq=SEQ, dtype="bf16"))
        assert held(where, BLOCK).scratch[0] == 2 * BLOCK.parameters(HIDDEN)

    def test_gradients_of_the_weights_own_width_need_none(self):
        for job in (Job(seq=SEQ, dtype="fp16"), Job(seq=SEQ, dtype="bf16", gradient_bytes=2.0)):
            where = setting(Layout(), gpu="A100-SXM4-80GB", job=job)
            assert held(where, BLOCK).scratch[0] == 0

    def test_experts_share_one_experts(self):
        model = load_model("mixtral-8x7b")
        block, job = model.blocks[0], Job(seq=SEQ, dtype="bf16")
        where = setting(
            Layout(), Layout(dp=8, ep=8), model=model, gpu="A100-SXM4-80GB", microbatch=8, job=job
        )
        experts = block.feed_forward.expert_parameters(model.hidden)
        expected = 2 * (block.parameters(model.hidden) - experts + experts / 8)
        assert held(where, block).scratch == pytest.approx([expected, expected])

    def test_it_stays_while_the_head_runs(self):
        """A stage's transient is the largest of its atoms' and, beside it, the scratch of its blocks."""
        where = setting(Layout(), gpu="A100-SXM4-80GB", job=Job(seq=SEQ, dtype="bf16"))
        head = held(where, atoms_of(GPT)[-1])
        assert (
            Pricer(where).price(3, 6).transient_bytes[0] == head.transient[0] + held(where, BLOCK).scratch[0]
        )
        # 16-bit logits and their fp32 copy, or logits' gradient and that of the vocabulary matrix.
        logits, matrix = SEQ * 51200, atoms_of(GPT)[-1].parameters
        assert head.transient[0] == max(logits * 6, logits * 2 + matrix * 2)


class TestTimeline:
    @pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
    def test_its_highest_total_is_the_stages_peak(self, schedule):
        cluster, model = load_cluster("azure-c1", HWDB), load_model("gpt3-2.7b")
        job = Job(global_batch=16, schedule=schedule)
        made = api.estimate(model, cluster, job, Uniform(tp=2, pp=4), hwdb=HWDB)
        rows = list(memory_rows(made.forecast))
        for number, stage in enumerate(made.document.stages):
            totals = [size for _, at, what, size in rows if (at, what) == (number, "total")]
            assert max(totals) == pytest.approx(stage.peak_memory_bytes)
            times = [time_s for time_s, at, what, _ in rows if (at, what) == (number, "total")]
            assert times == sorted(times) and times[-1] <= made.document.step_s * (1 + 1e-12)
            parts = {what: size for _, at, what, size in rows if at == number}  # the last of each kind
            assert parts["activations"] == pytest.approx(0, abs=1)
            assert parts["total"] == pytest.approx(sum(parts.values()) - parts["total"])

    def test_simulate_and_estimate_write_it(self, tmp_path):
        plan, first, again = (tmp_path / name for name in ("p.json", "a.csv", "b.csv"))
        layout = ("--tp", "4", "--pp", "4", "--global-batch", "16")
        done = tangram("estimate", "gpt3-2.7b", "azure-c1", *layout, "-o", plan, "--memory", first)
        assert done.code == 0 and "memory over time written to" in done.out
        assert tangram("simulate", plan, "--memory", again).code == 0
        assert first.read_text() == again.read_text()
        rows = list(csv.DictReader(io.StringIO(first.read_text())))
        assert {row["what"] for row in rows} == {
            *("states", "workspace", "context", "transient", "activations", "cached", "total")
        }
        assert {row["stage"] for row in rows} == {"0", "1", "2", "3"}

    def test_equal_plans_give_equal_text(self):
        cluster, model = load_cluster("azure-c1", HWDB), load_model("gpt3-2.7b")
        made = [
            api.estimate(model, cluster, Job(global_batch=16), Uniform(tp=4, pp=2), hwdb=HWDB)
            for _ in range(2)
        ]
        assert memory_csv(made[0].forecast) == memory_csv(made[1].forecast)


@pytest.fixture(scope="module")
def measured() -> list[dict[str, str]]:
    with RUNS.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["peak_mem_gb"]]


@pytest.fixture(scope="module")
def cases(measured) -> memory.MeasuredPeaks:
    return memory.cases(measured)


@pytest.mark.xdist_group("published peaks")
class TestAgainstPublishedPeaks:
    @pytest.mark.slow
    def test_errors_stay_under_the_targets(self, cases):
        """Median / 90th percentile of sources of equal weight: in-sample 4 / 10 %, left out 8 / 22 %."""
        splits = memory.splits(cases)
        for split, limit in (
            ("in-sample", (0.04, 0.10)),
            ("5-fold", (0.08, 0.22)),
            ("source left out", (0.08, 0.22)),
        ):
            figures = memory.accuracy(cases, splits[split])
            assert all(figure <= most for figure, most in zip(figures, limit, strict=True)), (split, figures)

    @pytest.mark.slow
    def test_committed_rows_are_the_fits(self, cases):
        committed = next(folder / "efficiency" / "memory.csv" for folder in map(Path, HWDB.folders[:1]))
        assert memory.rows_text(cases) == committed.read_text(encoding="utf-8")

    @pytest.mark.slow
    def test_kinds_are_scored_apart(self, measured):
        scores = report.document(predict_rows(measured[::4], HWDB))["memory"]
        assert set(scores) == {"allocated", "reserved", "device", "all"}
        assert scores["all"]["n"] == sum(scores[kind]["n"] for kind in ("allocated", "reserved", "device"))
        assert scores["allocated"]["median_ape"] <= 0.02  # SimuMax on B200
        assert json.dumps(scores)


def test_a_fit_finds_the_overhead_that_made_the_peaks():
    """Synthetic peaks of a known overhead: the prior gives way to twenty rows, and rules without any."""
    rng = np.random.default_rng(1)
    n = 20
    truth = memory.Overhead(3e9, 0.25)
    made = memory.MeasuredPeaks(
        name=tuple(map(str, range(n))),
        measured=np.ones(n),
        kind=np.full(n, 2),
        static=rng.uniform(5e9, 5e10, n),
        activations=rng.uniform(1e9, 4e10, n),
        context=np.full(n, 1e9),
        source=np.array(["a"] * n),
        stack=np.array(["sailor"] * n),
        fold=np.arange(n) % 5,
    )
    object.__setattr__(made, "measured", made.peaks(truth))
    everything = np.ones(n, bool)
    found = memory.fit(made, everything)
    assert found.workspace_bytes == pytest.approx(truth.workspace_bytes, rel=0.1)
    assert found.fragmentation == pytest.approx(truth.fragmentation, rel=0.1)
    assert memory.fit(made, ~everything) == memory.ASSUMED
    # A stack without runs of its own takes its runtime's, one of another runtime nothing.
    assert memory.runs_behind(made, "megatron-deepspeed", everything).all()
    assert not memory.runs_behind(made, "megatron", everything).any()


def test_a_table_without_peaks_is_an_error(tmp_path, capsys):
    table = tmp_path / "runs.csv"
    header, row = "id,gpu,gpus,layers,hidden,seq_len,gbs,tp,pp,dp", "a,A100-80GB,8,2,1024,1024,8,1,1,8"
    table.write_text(f"{header}\n{row}\n", encoding="utf-8")
    assert memory.main([str(table)]) == 2
    assert "peak_mem_gb" in capsys.readouterr().err
