"""Iterations priced layer by layer: laws of a forward pass, and the table made of it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.precision import PRECISIONS
from tangram_sim.serving.build import deployment_of, precision_of
from tangram_sim.serving.calibration import CalibrationTable
from tangram_sim.serving.closed_form import Load, closed_loop, greatest_throughput, open_loop
from tangram_sim.serving.costs import LayerStepCost, filled_graph, graph_bucket
from tangram_sim.serving.deployment import Speculation
from tangram_sim.serving.engines import engine_defaults
from tangram_sim.serving.forward import UNPACKING, IterationWork
from tangram_sim.serving.kv import kv_capacity, stage_memory
from tangram_sim.serving.transfer import prompt_kv_bytes

HWDB = Hwdb.load()
FITS = CalibrationTable.load(HWDB)


def cost(model: str, gpu: str = "H100", precision: str = "bf16", engine: str = "vllm", **degrees):  # type: ignore[no-untyped-def]
    shape = load_model(model)
    deployment = deployment_of(
        shape,
        gpu,
        HWDB,
        engine_defaults(HWDB, engine, HWDB.gpu(gpu)),
        precision=precision_of(precision, shape),
        **degrees,
    )
    return LayerStepCost(deployment, HWDB, FITS.fit(engine))


def seconds(where: LayerStepCost, rows: float, decodes: float, context: float = 1024.0) -> float:
    return float(where.step_s(rows, rows * rows / 2, decodes, decodes * context))


def test_nothing_to_do_takes_no_time() -> None:
    assert seconds(cost("llama3-8b"), 0, 0) == 0.0


MONOTONE = ("llama3-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b", "glm-5", "mistral-7b")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("model", MONOTONE)
def test_more_work_never_takes_less_in_a_step_table(model: str, engine: str) -> None:
    """Not with more prompt tokens, query-key pairs, decodes or context; nor than its decodes alone."""
    table = cost(model, engine=engine, tp=8).table(64, 8192)
    rows, context = (1, 8, 64, 500, 2048, 8192), (1, 500, 3000, 20_000)
    mixed = np.array(
        [
            [
                [
                    [table.mixed_step_s(n, float(n * keys), b, float(b * c)) for keys in (1, 1000, 5000)]
                    for c in context
                ]
                for b in range(65)
            ]
            for n in rows
        ]
    )
    decode = np.array([[table.decode_step_s(b, float(b * c)) for c in context] for b in range(65)])
    for axis in range(4):
        assert np.diff(mixed, axis=axis).min() >= -1e-12
    assert np.diff(decode, axis=0).min() >= -1e-12 and np.diff(decode, axis=1).min() >= -1e-12
    assert (mixed >= decode[None, :, :, None]).all()


@pytest.mark.parametrize("model", MONOTONE)
def test_more_work_never_takes_less(model: str) -> None:
    where = cost(model, tp=8)
    batches = np.arange(1.0, 513.0)
    steps = where.step_s(0.0, 0.0, batches, batches * 1000.0)
    assert np.all(np.diff(steps) > -1e-12)
    assert np.all(where.step_s(0.0, 0.0, batches, batches * 2000.0) >= steps)
    rows = np.geomspace(1, 8192, 40)
    assert np.all(np.diff(where.step_s(rows, rows * rows / 2, 8.0, 8000.0)) > -1e-12)
    n, b = np.meshgrid(np.arange(0.0, 600.0, 7.0), np.arange(65.0), indexing="ij")
    for context in (1.0, 3000.0):
        mixed = where.step_s(n, n * n / 2, b, b * context)
        assert np.diff(mixed, axis=0).min() >= -1e-12 and np.diff(mixed, axis=1).min() >= -1e-12


@given(
    st.sampled_from(["llama3-8b", "qwen3-14b", "gpt-oss-20b"]),
    st.sampled_from(["A100-SXM4-80GB", "H100", "L40S", "T4"]),
    st.sampled_from([1, 2, 4]),
    st.floats(1.0, 32768.0),
    st.floats(0.0, 256.0),
    st.floats(0.1, 1.0),
)
def test_no_prompt_outruns_measured_kernels(
    model: str, gpu: str, tp: int, rows: float, decodes: float, factor: float
) -> None:
    """However fast fitted factors make an iteration, its products run as kernels were measured at most."""
    where, shape = cost(model, gpu, tp=tp), load_model(model)
    fit = where.fit
    fast = replace(fit, values={**fit.values, "gemm": factor, "prefill": factor, "time_scale": factor})
    blocks = sum(block.attention.parameters(shape.hidden) for block in shape.blocks)
    if model != "gpt-oss-20b":
        blocks += sum(block.feed_forward.parameters(shape.hidden) for block in shape.blocks)
    rate = max(
        HWDB.gpu(gpu).peak_flop_per_s(item) * HWDB.efficiency(HWDB.gpu(gpu), item).gemm_efficiency.value
        for item in ("bf16", "fp16")
    )
    least = 2.0 * blocks * (rows + decodes) / tp / rate
    assert seconds(replace(where, fit=fast), rows, decodes) >= least * (1.0 - 1e-3)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_prompts_of_mixtures_take_as_long_as_experts_inside_the_engine(engine: str) -> None:
    """However fast fitted factors are; but not where moving takes as long, of which nothing was measured."""
    where = cost("qwen3-30b-a3b", "A100-SXM4-80GB", engine=engine)
    values = {**where.fit.values, "gemm": 0.1, "experts": 0.1, "prefill": 0.1}
    fast = replace(where, fit=replace(where.fit, values=values))
    for rows, factor in ((65536.0, where.fit["experts_floor"]), (512.0, 1.0)):
        (times,) = where.passes(where.work(*np.array([[rows], [rows**2 / 2], [0.0], [0.0]])))
        experts, whole = float(times.experts_least_s[0]), float(times.least_s[0])
        least = whole + (factor - 1.0) * experts
        assert float(fast.least_s(rows, rows**2 / 2, 0, 0)) == pytest.approx(least, rel=1e-9)
        assert seconds(fast, rows, 0) >= least * (1.0 - 1e-9)


def test_caches_are_read_after_products_that_measured_kernels_bound() -> None:
    """However small other factors are, longer contexts lengthen an iteration by their reading."""
    where = cost("llama3-8b", engine="vllm")
    values = {**where.fit.values, "gemm": 0.1, "attention": 0.1, "prefill": 0.1}
    fast = replace(where, fit=replace(where.fit, values=values))
    near, far = (seconds(fast, 8192, 64, context) for context in (1000, 5000))
    read = [float(fast.step_s(0, 0, 64, 64.0 * context)) for context in (1000, 5000)]
    assert far - near == pytest.approx((read[1] - read[0]) / fast.fit["time_scale"], rel=0.01)


def test_weights_are_read_once_an_iteration() -> None:
    """One request waits for all weights; 32 wait hardly longer."""
    where = cost("llama3-8b")
    read = 2 * load_model("llama3-8b").parameters / HWDB.gpu("H100").memory_bytes_per_s
    assert seconds(where, 0, 1, 128) > 0.9 * read
    assert seconds(where, 0, 32, 128) < 1.35 * seconds(where, 0, 1, 128)


def test_caches_of_other_kinds_of_attention() -> None:
    """What 1,000 more tokens of context cost: all heads, one latent, a window, a state."""
    work = IterationWork(np.zeros(2), np.zeros(2), np.full(2, 16.0), np.array([16e3, 32e3]))

    def slope(model: str) -> float:
        first, second = cost(model, tp=1).passes(work)[0].cache
        return float(second - first) / load_model(model).layers

    dense, latent = slope("llama3-8b"), slope("deepseek-v2-lite")
    assert latent < dense  # 576 numbers a token against 2,048
    sliding = slope("gpt-oss-20b")
    assert sliding < 0.6 * slope("qwen3-30b-a3b") * (8 * 64) / (4 * 128)  # every second layer slides
    assert slope("qwen3.5-397b-a17b") < 0.3 * dense  # a quarter of the layers keeps a cache


def test_experts_touched_grow_with_the_batch() -> None:
    where = cost("qwen3-30b-a3b")
    batches = np.array([1.0, 8.0, 64.0, 512.0])
    zero = np.zeros(4)
    passes = where.passes(IterationWork(zero, zero, batches, zero))[0]
    grown = passes.experts / passes.experts[0]
    assert grown[1] == pytest.approx((1 - (1 - 8 / 128) ** 8) / (8 / 128), rel=0.02)
    assert grown[2] < 16.2  # all 128 experts, where one token meets 8


def test_fewer_bits_are_faster_where_weights_are_what_is_read() -> None:
    steps = [seconds(cost("llama3-70b", "H200", name, tp=2), 0, 1) for name in ("bf16", "fp8", "int4")]
    assert steps[0] > 1.5 * steps[1] > 1.5 * steps[2]


def test_quantised_weights_run_on_gpus_without_units_for_them() -> None:
    """An A100 has no fp8 units: half the bytes, products in 16 bits after unpacking."""
    small = [seconds(cost("llama3-8b", "A100-80GB", name), 0, 1) for name in ("bf16", "fp8")]
    large = [seconds(cost("llama3-8b", "A100-80GB", name), 8192, 0) for name in ("bf16", "fp8")]
    assert small[1] < 0.75 * small[0]
    assert 1.1 * large[0] < large[1] < UNPACKING * large[0]
    own_units = [seconds(cost("llama3-8b", "H100", name), 8192, 0) for name in ("bf16", "fp8")]
    assert own_units[1] < own_units[0]


def test_pcie_decides_tensor_parallel_prefill() -> None:
    """Measured throughput of A100 SXM over PCIe grows with tp (TensorRT-LLM 0.15); so here in prefill."""
    ratios = [
        seconds(cost("llama3-70b", "A100-PCIe-80GB", tp=tp), 4096, 0)
        / seconds(cost("llama3-70b", "A100-SXM4-80GB", tp=tp), 4096, 0)
        for tp in (1, 2, 4, 8)
    ]
    assert ratios == sorted(ratios)
    assert ratios[-1] > 2.0


def test_a_pipeline_s_step_is_its_stages_or_the_slowest_one_s_turns() -> None:
    """Two equal stages: a token passes both; full seats keep both busy."""
    item, two = cost("llama3-8b"), cost("llama3-8b", pp=2)
    assert seconds(two, 0, 2, 128) == pytest.approx(seconds(item, 0, 1, 128), rel=0.15)
    assert seconds(two, 8192, 0) < 1.2 * seconds(item, 8192, 0)


def test_checking_drafts_costs_less_than_the_tokens_it_yields() -> None:
    plain, drafted = cost("llama3-70b", tp=4), cost("llama3-70b", tp=4, speculation=Speculation(3, 0.8))
    ratio = seconds(drafted, 0, 4) / seconds(plain, 0, 4)
    assert 1.0 <= ratio < 1.2 < Speculation(3, 0.8).tokens


@pytest.mark.parametrize("model", ["llama3-8b", "gpt-oss-20b", "qwen3-30b-a3b"])
def test_a_table_repeats_what_it_was_made_of(model: str) -> None:
    where = cost(model, tp=2)
    table = where.table(256, 8192)
    for decodes in (1, 7, 64, 256):
        for context in (64, 700, 5000):
            exact = seconds(where, 0, decodes, context)
            assert table.decode_step_s(decodes, decodes * context) == pytest.approx(exact, rel=0.02)
    for rows in (512, 3000, 8192):
        for decodes, context in ((1, 100), (32, 2000), (200, 500), (200, 4000)):
            exact = seconds(where, rows, decodes, context)
            mixed = table.mixed_step_s(rows, rows * rows / 2, decodes, decodes * context)
            assert mixed == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("model", ["mistral-7b", "gemma2-27b", "starcoder2-15b"])
def test_a_table_reads_caches_beside_prompts_up_to_the_window(model: str) -> None:
    """Layers that read no more than a window take less than as many that read all."""
    where = cost(model, tp=2)
    table = where.table(256, 8192)
    for rows in (1, 64, 512, 8192):
        for decodes, context in ((1, 100), (64, 1000), (200, 4500), (64, 32_000), (8, 30_000)):
            exact = seconds(where, rows, decodes, context)
            mixed = table.mixed_step_s(rows, rows * rows / 2, decodes, decodes * context)
            assert mixed == pytest.approx(exact, rel=0.01)


def test_the_cache_takes_what_weights_leave() -> None:
    """Llama-3.1-8B on an H100 under vLLM 0.19 at 0.95: 476,000 tokens as it printed (llm-d planner logs)."""
    where = cost("llama3-8b")
    fit, deployment = where.fit, where.deployment
    memory = stage_memory(deployment, deployment.stages[0], HWDB, fit)
    assert memory.weights == pytest.approx(14.99 * 2**30, rel=0.005)
    assert memory.token == 32 * 2 * 8 * 128 * 2
    assert kv_capacity(deployment, HWDB, fit).tokens == pytest.approx(476_000 - 32_500, rel=0.03)


def test_closed_and_open_loops_agree_where_both_hold() -> None:
    """The rate that a closed loop completes, offered openly, has about as many requests in flight."""
    where = cost("llama3-70b", tp=4, precision="fp8")
    capacity = kv_capacity(where.deployment, HWDB, where.fit)
    load = Load.of(1024, 512)
    closed = closed_loop(where, where.deployment, capacity, load, 32)
    opened = open_loop(where, where.deployment, capacity, load, closed.request_rate)
    assert opened.tpot_s == pytest.approx(closed.tpot_s, rel=0.05)
    assert opened.overloaded[0] == 0
    most = greatest_throughput(where, where.deployment, capacity, load)
    over = open_loop(where, where.deployment, capacity, load, 1.1 * most.request_rate)
    assert over.overloaded[0] == 1
    assert over.request_rate == pytest.approx(most.request_rate)


def test_moving_a_cache_counts_its_bytes() -> None:
    where = cost("llama3-8b").deployment
    assert prompt_kv_bytes(where, 1000) == 1000 * 131072


def test_precisions_of_checkpoints() -> None:
    sparse, dense = load_model("deepseek-v3"), load_model("llama3-70b")
    assert precision_of("fp4", sparse).attention == "bf16"
    assert precision_of("fp4", dense).attention == "nvfp4"
    assert precision_of("fp4", load_model("gpt-oss-20b")).expert_bytes == PRECISIONS["mxfp4"].weight_bytes


def test_graphs_that_a_batch_fills_and_fits_into_are_neighbours() -> None:
    """The largest captured size of no more requests, the smallest of no fewer."""
    sizes = np.array(sorted({1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)}))
    batches = np.concatenate([np.arange(1.0, 513.0), np.linspace(1.0, 512.0, 777)])
    np.testing.assert_array_equal(filled_graph(batches), [sizes[sizes <= item].max() for item in batches])
    np.testing.assert_array_equal(
        graph_bucket(batches, 512), [sizes[sizes >= item].min() for item in batches]
    )


def test_experts_scaled_by_block_take_their_factor_and_others_do_not() -> None:
    for model, blocks in (("qwen3-235b-a22b", True), ("llama4-scout", False)):
        shape = load_model(model)
        engine = engine_defaults(HWDB, "vllm", HWDB.gpu("H100"), "0.11.1")
        for precision in ("fp8", "bf16"):
            kind = precision_of(precision, shape)
            deployment = deployment_of(shape, "H100", HWDB, engine, precision=kind, tp=8)
            assert deployment.block_scaled == (blocks and precision == "fp8")
            fit = FITS.fit_of(deployment, "0.11.1")
            plain = replace(fit, values={**fit.values, "experts_blocks": 1.0})
            step, without = (
                seconds(LayerStepCost(deployment, HWDB, engine_fit), 0.0, 32.0) for engine_fit in (fit, plain)
            )
            assert (step > 1.05 * without) == deployment.block_scaled
