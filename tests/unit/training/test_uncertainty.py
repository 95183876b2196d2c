"""Intervals: seconds per factor come from the played path, common errors cancel, the unknown is wider."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tangram_validate.calibration import first_sight, intervals

from tangram_sim.hwdb import Hwdb, Row, load_cluster, load_model
from tangram_sim.layers.chain import _join
from tangram_sim.layers.program import CLASSES
from tangram_sim.opgraph import op_graph
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.uniform.layouts import Uniform, uniform_plan
from tangram_sim.sim import critical_path, fast, path_totals
from tangram_sim.studies import api
from tangram_sim.studies.batch_estimates import Refusal
from tangram_sim.training.job import Job
from tangram_sim.training.schedules.step import play_steps
from tangram_sim.training.stage.sharing import atoms_held
from tangram_sim.training.step.factors import ClassShares
from tangram_sim.training.step.intervals import Z90, compare, uncertainty
from tangram_sim.training.step.lowered import Lowering
from tests.commands import files, tangram
from tests.neutral import neutral_hwdb
from tests.slices import chain_graph
from tests.unit.validation.published_rows import ROW
from tests.unit.validation.published_rows import row as published_row

HWDB = neutral_hwdb()
GPT, CLUSTER = load_model("gpt3-6.7b"), load_cluster("h100x8-nodes4", HWDB)
JOB = Job(global_batch=64, dtype="bf16")


def rows(*cells: tuple[str, str, str, str, str, float], sigma: float = 0.0) -> list[Row]:
    """Efficiency rows (gpu, dtype, kernel, stack, parameter, value)."""
    names = ("gpu", "dtype", "kernel", "stack", "parameter", "value")
    rest = {"sigma": str(sigma), "n": "1", "source": "test"}
    return [
        Row("efficiency", "/".join(map(str, cell)), {**dict(zip(names, map(str, cell), strict=True)), **rest})
        for cell in cells
    ]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40))
def test_path_totals_agree_with_the_critical_path(seed: int, n: int) -> None:
    """The compiled walk counts the same seconds as `critical_path`, ties included."""
    random = np.random.default_rng(seed)
    pred = [sorted(random.choice(i, min(i, int(random.integers(0, 3))), replace=False)) for i in range(n)]
    graph = op_graph(
        resource=random.integers(0, 3, n),
        duration_s=random.integers(0, 4, n).astype(float),  # equal ends on purpose
        pred_ptr=np.concatenate([[0], np.cumsum([len(p) for p in pred])]),
        pred=[int(p) for own in pred for p in own],
        resources=("a", "b", "c"),
        kind=random.integers(0, 4, n),
        kinds=("k0", "k1", "k2", "k3"),
    )
    found = path_totals(graph, np.arange(n, dtype=np.int32), graph.duration_s[None, :], graph.kind, 4)[0]
    expected = critical_path(fast.play(graph)).seconds_by_kind()
    assert {name: s for name, s in zip(graph.kinds, found.tolist(), strict=True) if s > 0} == expected


def lowered(layout: Uniform, job: Job = JOB, hwdb: Hwdb = HWDB):
    plan = uniform_plan(GPT, CLUSTER, job, layout)
    lowering = Lowering.of(plan, hwdb)
    return lowering.lower(plan.pipelines[0]), lowering


def test_class_seconds_are_those_of_the_slices_own_graph() -> None:
    step, lowering = lowered(Uniform(tp=2, pp=2))
    stage = step.pipeline.stages[0]
    pricer = lowering.prices.pricer(
        lowering.placement.island(stage.ranks), stage.layout, step.pipeline.microbatch
    )
    start, stop = atoms_held(stage, GPT.layers)[0]
    programs = pricer.programs(pricer.atoms[start:stop], "forward")
    found = ClassShares().seconds(pricer, start, stop, "forward")[0]
    graph = chain_graph(programs, [""] * len(programs))
    structure = _join(programs).structure
    pass_s = fast.play(graph).end_s[structure.group >= 0].max()
    assert found.sum() == pytest.approx(pass_s, rel=1e-9)
    assert found[CLASSES.index("gemm")] > found[CLASSES.index("memory")] > 0


@pytest.mark.parametrize(
    "layout", [Uniform(tp=2, pp=4), Uniform(tp=8, zero_stage=1), Uniform(zero_stage=3), Uniform(pp=8)]
)
def test_factors_are_derivatives_of_the_step(layout: Uniform) -> None:
    """A factor's seconds are how fast the step grows with its error: checked by making GEMMs 0.1 % slower."""
    step, lowering = lowered(layout)
    doubt = uncertainty(step, lowering)
    value = HWDB.efficiency(HWDB.gpu("H100-SXM5-80GB"), "bf16").gemm_efficiency.value
    slower = HWDB.with_efficiency(
        rows(("H100-SXM5-80GB", "bf16", "gemm", "generic", "efficiency", value / 1.001))
    )
    grown = uncertainty(*lowered(layout, hwdb=slower)).step_s - doubt.step_s
    assert doubt.step_s == pytest.approx(
        float(play_steps(step.template, step.template.durations(step.times)[None])[0])
    )
    # Launches and memory-bound products do not grow, and what they hide behind may.
    assert grown / 0.001 == pytest.approx(doubt.factor_s["gemm H100-SXM5-80GB bf16"], rel=0.25)


def test_the_interval_follows_from_shares_and_rows() -> None:
    doubt = uncertainty(*lowered(Uniform(tp=2, pp=2)))
    by_hand = sum((s / doubt.step_s * doubt.factor_sigma[name]) ** 2 for name, s in doubt.factor_s.items())
    residual = HWDB.residuals(HWDB.gpu("H100-SXM5-80GB"), "bf16")
    assert doubt.sigma == pytest.approx(math.sqrt(residual.prior_share**2 * by_hand + residual.step**2))
    assert doubt.step_s_high / doubt.step_s == pytest.approx(math.exp(Z90 * doubt.sigma))
    assert doubt.step_s_low * doubt.step_s_high == pytest.approx(doubt.step_s**2)


def test_doubt_about_a_stacks_attention_widens_the_interval() -> None:
    """The factor on attention has an error of its own beside the kernels'."""
    layout = Uniform(tp=2, pp=2)
    surer, doubtful = (
        HWDB.with_efficiency(rows(("*", "*", "stack", "generic", "attention_scale", 1.0), sigma=sigma))
        for sigma in (0.0, 0.5)
    )
    before, after = (uncertainty(*lowered(layout, hwdb=hwdb)) for hwdb in (surer, doubtful))
    assert after.step_s == before.step_s
    assert after.sigma > before.sigma


def test_what_was_never_seen_is_wider() -> None:
    table = rows(
        ("*", "*", "stack", "calibrated", "residual", 0.1),
        ("*", "*", "stack", "calibrated-elsewhere", "residual", 0.15),
        ("*", "*", "stack", "sister", "residual", 0.2),
        ("*", "*", "stack", "generic", "residual", 0.3),
        ("*", "*", "stack", "generic", "residual_unmeasured", 0.4),
        *(
            ("*", "*", "stack", of, "residual_mixture", x)
            for of, x in (("calibrated", 0.5), ("generic", 0.6))
        ),
        ("*", "*", "stack", "own", "time_scale", 1.0),
        ("arch:Hopper", "*", "stack", "megatron", "time_scale", 1.0),
        ("arch:Blackwell", "*", "stack", "own", "time_scale", 1.0),
    )
    kin = {"gpu": "*", "dtype": "*", "kernel": "stack", "stack": "kin", "parameter": "time_scale"}
    kin |= {"value": "1", "sigma": "0", "n": "0", "source": "inherited from lineage"}
    table.append(Row("efficiency", "kin", kin))
    hwdb = HWDB.with_efficiency(table)
    gpu = HWDB.gpu("H100-SXM5-80GB")
    found = [hwdb.residuals(gpu, "bf16", stack) for stack in ("megatron", "own", "kin", "nobody's")]
    assert [residuals.step for residuals in found] == [0.1, 0.15, 0.2, 0.3]
    assert [residuals.stack_known for residuals in found] == [True, True, False, False]
    unmeasured = hwdb.residuals(replace(gpu, measured=False), "bf16", "megatron")
    assert unmeasured.step == pytest.approx(math.hypot(0.1, 0.4))
    mixed = found[0].of(mixture=True).step, found[3].of(mixture=True).step, found[0].of(mixture=False).step
    assert mixed == pytest.approx((math.hypot(0.1, 0.5), math.hypot(0.3, 0.6), 0.1))
    own = HWDB.with_efficiency([*table, *rows((gpu.name, "bf16", "stack", "megatron", "residual", 0.05))])
    assert own.residuals(gpu, "bf16", "megatron").step == 0.05
    assert own.residuals(gpu, "fp8", "megatron").step == 0.1


def test_ones_own_rows_for_generic_do_not_speak_for_other_stacks() -> None:
    """Software rows are looked up by stack first: (this GPU, generic) does not hide (any GPU, deepspeed)."""
    hwdb = HWDB.with_efficiency(
        rows(
            ("H100-SXM5-80GB", "bf16", "stack", "generic", "time_scale", 2.0),
            ("*", "*", "stack", "deepspeed", "time_scale", 1.1),
        )
    )
    gpu = HWDB.gpu("H100-SXM5-80GB")
    assert hwdb.efficiency(gpu, "bf16", "deepspeed").time_scale.value == 1.1
    assert hwdb.efficiency(gpu, "bf16", "no rows of its own").time_scale.value == 2.0


def test_common_errors_cancel_in_a_comparison() -> None:
    best, other = (uncertainty(*lowered(Uniform(tp=2, pp=pp))) for pp in (2, 4))
    same = compare(best, best, same=True)
    assert (same.ratio_low, same.ratio, same.ratio_high, same.told_apart) == (1.0, 1.0, 1.0, False)
    against = compare(other, best)
    assert math.log(against.ratio_high / against.ratio) < Z90 * best.sigma / 2
    assert compare(replace(other, step_s=3 * other.step_s), best).told_apart


def test_plan_says_which_alternatives_cannot_be_told_apart(tmp_path: Path) -> None:
    model, cluster = files(tmp_path)
    found = tangram("plan", model, cluster, "--json", "--global-batch", 4, "--top", 4).json
    assert 0 < found["step_s_low"] < found["step_s"] < found["step_s_high"]
    assert found["peak_memory_bytes"] < found["peak_memory_bytes_high"]
    assert {kind["gpu"] for kind in found["gpu_kinds"]} <= {"T4", "A100-SXM4-40GB"}
    assert all(kind["rests_on"] for kind in found["gpu_kinds"])
    for item in found["alternatives"]:
        assert item["ratio_low"] < item["step_s"] / found["step_s"] < item["ratio_high"]
        assert item["told_apart"] == (not item["ratio_low"] <= 1 <= item["ratio_high"])
        assert item["told_apart"] != ("statistically tied" in item["summary"])
    shown = tangram("estimate", model, cluster, "--dp", 4).out
    assert " to " in shown.splitlines()[1].partition("tokens/s")[0]


def test_simulate_repeats_the_interval_and_the_stack(tmp_path: Path) -> None:
    model, cluster = files(tmp_path)
    plan = tmp_path / "plan.json"
    options = ("--dp", 4, "--tp", 2, "--stack", "megatron", "--no-flash-attention", "--trainable", 0.5)
    made = tangram("estimate", model, cluster, *options, "--json", "-o", plan).json
    again = tangram("simulate", plan, "--json").json
    for key in ("step_s", "step_s_low", "step_s_high", "peak_memory_bytes_high"):
        assert again[key] == pytest.approx(made[key], rel=1e-9)
    assert again["job"] == made["job"] and made["job"]["stack"] == "megatron"


MANY = [
    Uniform(tp=tp, pp=pp, zero_stage=zero, recompute=recompute, sequence_parallel=tp == 8)
    for tp in (1, 8)
    for pp in (1, 4)
    for zero in (0, 1, 3)
    for recompute in ("none", "full")
]


@pytest.mark.parametrize("name", ["gpt3-6.7b", "deepseek-v2-lite", "gpt2-xl"])
def test_many_layouts_are_what_estimate_says_of_each(name: str) -> None:
    """Except for links that transfers share, which many layouts at once leave out."""
    model = load_model(name)
    layouts = [uniform for uniform in MANY if not model.blocks[0].attention.heads % uniform.tp]
    for found, layout in zip(
        api.estimate_many(model, CLUSTER, JOB, layouts, hwdb=HWDB), layouts, strict=True
    ):
        alone = api.estimate(model, CLUSTER, JOB, layout, hwdb=HWDB).document
        assert not isinstance(found, Refusal)
        assert found.step_s <= alone.step_s * (1 + 1e-9)
        assert found.step_s == pytest.approx(alone.step_s, rel=2e-3)
        assert found.step_s_high == pytest.approx(alone.step_s_high, rel=2e-3)
        assert found.peak_memory_bytes == pytest.approx(alone.peak_memory_bytes)
        assert found.peak_memory_bytes_high == pytest.approx(alone.peak_memory_bytes_high)
        assert found.mfu == pytest.approx(alone.mfu, rel=2e-3)
        assert (found.feasible, found.gpus_used) == (alone.feasible, alone.gpus_used)


def test_many_layouts_interleaved_and_refused() -> None:
    wanted = [
        Uniform(tp=2, pp=4, vpp=2),
        Uniform(tp=3),
        Uniform(tp=2, pp=4, dp=1),
        Uniform(pp=4, micro_batch=2),
    ]
    found = api.estimate_many(GPT, CLUSTER, JOB, wanted, hwdb=HWDB)
    assert isinstance(found[1], Refusal) and "does not divide the 32 attention heads" in found[1].reason
    for at in (0, 2, 3):
        item = found[at]
        assert not isinstance(item, Refusal) and item.layout == wanted[at]
        alone = api.estimate(GPT, CLUSTER, JOB, wanted[at], hwdb=HWDB).document
        assert item.step_s == pytest.approx(alone.step_s, rel=2e-3) and item.gpus_used == alone.gpus_used


def test_optimizer_adapters_and_stack_are_inputs(tmp_path: Path) -> None:
    model, cluster = files(tmp_path)

    def stage(*options: object) -> dict[str, float]:
        found: dict[str, float] = tangram(
            "estimate", model, cluster, "--dp", 2, "--tp", 2, "--json", *options
        ).json["stages"][0]
        return found

    full, lamb, sgd, lora = (
        stage(),
        stage("--optimizer", "lamb"),
        stage("--optimizer", "sgd"),
        stage("--lora-rank", 8),
    )
    assert lamb == full
    tensors = [item["peak_memory_allocated_bytes"] for item in (sgd, full, lora)]
    assert tensors[0] < tensors[1] > 1.2 * tensors[2]
    assert lora["gradient_sync_s"] < full["gradient_sync_s"] / 10 and lora["backward_s"] < full["backward_s"]
    # 4 blocks, hidden 512: queries, keys, values and output of 512 columns each, rank x (in + out).
    share = tangram("estimate", model, cluster, "--dp", 4, "--lora-rank", 8, "--json").json["job"][
        "trainable"
    ]
    parameters = tangram("models", "show", model, "--json").json["parameters"]
    assert share == pytest.approx(4 * 4 * 8 * (512 + 512) / parameters)
    for options, words in (
        (("--stack", "nobodys"), "unknown stack"),
        (("--trainable", 0), "above 0"),
        (("--lora-rank", 0), "--lora-rank 0"),
        (("--lora-rank", 8, "--trainable", 0.5), "drop --trainable"),
        (("--optimizer", "adamm"), "unknown optimizer"),
    ):
        refused = tangram("estimate", model, cluster, *options)
        assert refused.code == 2 and words in refused.err and "Traceback" not in refused.err


def test_the_intervals_program_reads_what_first_sight_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record of runs predicted today; its widths are rows that the database takes."""
    runs = tmp_path / "runs.csv"
    with runs.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*ROW, "gpu_mem_gb"])
        writer.writeheader()
        for n in range(12):
            cells = {"id": f"r{n}", "source_id": f"s{n % 4}", "iter_time_s": f"{1.0 + 0.02 * (n % 7)}"}
            writer.writerow(
                published_row(**cells, peak_mem_gb="60" if n % 2 else "", mem_kind="GiB allocated")
            )
    table, out = tmp_path / "sight.csv", tmp_path / "overlay" / "efficiency"
    assert first_sight.main([str(runs), "-o", str(table)]) == 0
    errors, names = intervals.read_errors(table)
    assert len(names) == 12 and len(errors.memory) == 6 and set(errors.source) == {"s0", "s1", "s2", "s3"}
    out.mkdir(parents=True)
    assert intervals.main([str(table), "-o", str(out / "intervals.csv")]) == 0
    assert "every source the same weight" in capsys.readouterr().out
    hwdb = neutral_hwdb(tmp_path / "overlay")
    kind = HWDB.gpu("H100-SXM5-80GB")
    assert 0.0 < hwdb.residuals(kind, "bf16", "generic").step < 0.5
    assert hwdb.residuals(kind, "bf16", "generic").memory_plan == 0.081
    bad = tmp_path / "bad.csv"
    bad.write_text("a,b\n1,2\n")
    assert intervals.main([str(bad)]) == 2
    assert first_sight.main([str(bad), "-o", str(table)]) == 2


def test_search_keeps_its_answer_when_residuals_change() -> None:
    """Rows about errors change intervals, never plans."""
    cluster = load_cluster("azure-c1-v100x16", HWDB)
    wider = HWDB.with_efficiency(
        rows(
            ("*", "*", "stack", "generic", "residual_unmeasured", 1.5),
            ("*", "*", "memory", "generic", "residual", 1.0),
        )
    )
    first, second = (
        api.plan(
            load_model("gpt3-350m"),
            cluster,
            Job(global_batch=4),
            wishes=SearchOptions(sub_islands=False),
            hwdb=hwdb,
        ).document
        for hwdb in (HWDB, wider)
    )
    assert (first.step_s, first.pipelines) == (second.step_s, second.pipelines)
    assert second.step_s_high > first.step_s_high
