"""What degrees do to a replica: ranks hold the model between them, and parts take what other degrees say.

One identity holds a family of formulas: a rank of attention data parallelism prices attention as a replica
without it does, and experts as one of more tensor parallelism does, for the tokens of all groups.
"""

from dataclasses import fields, replace

import numpy as np
import pytest

from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.models import Block, Experts, Model
from tangram_sim.precision import PRECISIONS, STORED_BYTES
from tangram_sim.serving.build import deployment_of
from tangram_sim.serving.costs import ranks_of
from tangram_sim.serving.deployment import Deployment
from tangram_sim.serving.engines import engine_defaults
from tangram_sim.serving.forward import (
    KERNELS_EXPERTS,
    KERNELS_INDEX,
    KERNELS_LATENT,
    KERNELS_LINEAR,
    ForwardTimes,
    IterationWork,
    Ranks,
    block_times,
    end_times,
)
from tangram_sim.serving.kv import attention_bytes, block_bytes, end_bytes
from tangram_sim.serving.workload import Workload

HWDB = Hwdb.load()
MODELS = (
    "llama3-8b", "gpt-oss-20b", "qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-v3", "glm-5",
    "qwen3.5-397b-a17b", "opt-350m",
)  # fmt: skip
WORK = IterationWork(
    rows=np.array([0.0, 512.0, 100.0]),
    scores=np.array([0.0, 512.0**2 / 2, 100.0 * 350]),
    decodes=np.array([16.0, 0.0, 64.0]),
    contexts=np.array([16e3, 0.0, 640e3]),
)


def replica(model: str, tp: int = 1, attention_dp: int = 1, ep: int = 1) -> Deployment:
    engine = engine_defaults(HWDB, "vllm", HWDB.gpu("H100"))
    shape = load_model(model)
    return deployment_of(
        shape, "H100", HWDB, engine, precision=PRECISIONS["bf16"], tp=tp, attention_dp=attention_dp, ep=ep
    )


def ranks(where: Deployment) -> Ranks:
    return ranks_of(where, where.stages[0], HWDB)


def kinds(model: Model) -> list[Block]:
    return list(dict.fromkeys(model.blocks))


def elements(block: Block, hidden: int) -> dict[str, float]:
    """Parameters of a block by part, as counted for the whole model."""
    part, norms = block.feed_forward, float(block.norms * block.norm_width(hidden))
    found = {"attention": float(block.attention.parameters(hidden)), "norms": norms}
    if isinstance(part, Experts):
        router = float(part.experts * hidden + (part.experts if part.router_bias else 0))
        found |= {
            "router": router,
            "experts": float(part.expert_parameters(hidden)),
            "shared": part.common_parameters(hidden) - router,
        }
    else:
        found["dense"] = float(part.parameters(hidden))
    return found


@pytest.mark.parametrize("model", MODELS)
def test_one_rank_holds_every_parameter_once(model: str) -> None:
    """At two bytes each; both ends of a tied matrix are one where one stage has both."""
    where, shape = replica(model), load_model(model)
    for block in kinds(shape):
        whole = sum(elements(block, shape.hidden).values())
        assert block_bytes(block, where, 1) == pytest.approx(2 * whole, rel=1e-12)
    blocks = sum(block_bytes(block, where, 1) for block in shape.blocks)
    ends = end_bytes(shape, where.precision, 1, True, True)
    assert blocks + ends == pytest.approx(2 * shape.parameters, rel=1e-12)
    apart = [end_bytes(shape, where.precision, 1, *item) for item in ((True, False), (False, True))]
    again = shape.vocabulary_parameters if shape.tied else 0
    assert sum(apart) == pytest.approx(ends + 2 * again, rel=1e-12)
    assert end_bytes(shape, where.precision, 1, False, False) == 0.0


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("tp", "dp"), [(2, 1), (1, 4), (4, 2)])
def test_ranks_hold_between_them_what_is_split_once_and_what_is_not_once_each(
    model: str, tp: int, dp: int
) -> None:
    """Experts lie on all ranks together; norms and routers on each; the rest once in every group.

    Of attention, what cannot be split is on all ranks of a group: latents' way down, too few key heads.
    """
    where, shape = replica(model, tp, dp), load_model(model)
    for block in kinds(shape):
        part, attention = elements(block, shape.hidden), block.attention
        own = attention_bytes(attention, shape.hidden, tp, where.precision) / 2
        each = own + part["norms"] + part.get("router", 0.0)
        each += (part.get("shared", 0.0) + part.get("dense", 0.0)) / tp + part.get("experts", 0.0) / (tp * dp)
        assert block_bytes(block, where, tp) == pytest.approx(2 * each, rel=1e-12)
        if attention.kv_rank:
            down = shape.hidden * ((attention.query_rank or 0) + attention.kv_rank + attention.rope_dim)
            assert tp * own == pytest.approx(part["attention"] + (tp - 1) * down, rel=1e-12)
        else:
            keys = attention.kv_heads * (attention.head_dim + attention.value_dim) * shape.hidden
            copies = max(tp / attention.kv_heads, 1.0)
            assert tp * own == pytest.approx(part["attention"] + (copies - 1) * keys, rel=1e-12)


def test_routers_and_norms_are_kept_in_the_vector_type_and_experts_in_their_own() -> None:
    """Of four-bit experts: 4.25 bits and scales a weight, the router in sixteen."""
    where, shape = replica("qwen3-30b-a3b"), load_model("qwen3-30b-a3b")
    (block,) = kinds(shape)
    precision = replace(PRECISIONS["bf16"], experts="mxfp4", attention="fp8")
    part = elements(block, shape.hidden)
    found = block_bytes(block, replace(where, precision=precision), 1)
    assert found == pytest.approx(
        part["attention"] * STORED_BYTES["fp8"]
        + part["experts"] * STORED_BYTES["mxfp4"]
        + 2 * (part["norms"] + part["router"] + part["shared"]),
        rel=1e-12,
    )


def same(forward_times: ForwardTimes, other: ForwardTimes, *parts: str) -> None:
    for part in parts:
        np.testing.assert_allclose(
            getattr(forward_times, part), getattr(other, part), rtol=1e-12, err_msg=part
        )


ATTENTION = ("cache", "attention", "reduce", "kernels")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("tp", "dp"), [(1, 2), (2, 4)])
def test_attention_groups_price_attention_alone_and_experts_for_all_of_them(
    model: str, tp: int, dp: int
) -> None:
    """At equal work of a rank; experts as tp x dp tensor-parallel ranks have them, for all groups' tokens."""
    shape = load_model(model)
    groups, alone, wide = (ranks(replica(model, *item)) for item in ((tp, dp), (tp, 1), (tp * dp, 1)))
    every = IterationWork(*(dp * getattr(WORK, field.name) for field in fields(WORK)[:4]))
    for block in kinds(shape):
        found = block_times(groups, block, WORK)
        same(found, block_times(alone, block, WORK), *ATTENTION, "gemm")
        if not isinstance(block.feed_forward, Experts):
            same(found, block_times(alone, block, WORK), "memory", "least_s", "reductions")
            continue
        same(found, block_times(wide, block, every), "experts", "exchange")
        # To the experts and back, and one reduction in a group.
        np.testing.assert_array_equal(found.reductions, np.full(3, 2.0 + (tp > 1)))
        np.testing.assert_array_equal(found.exchange, np.zeros(3))


@pytest.mark.parametrize("model", MODELS)
def test_kernels_are_counted_by_what_a_block_has(model: str) -> None:
    """Against a plain dense block: latents, states, indexers and experts add theirs, each once."""
    where, shape = ranks(replica(model)), load_model(model)
    (dense,) = kinds(load_model("llama3-8b"))
    plain = block_times(ranks(replica("llama3-8b")), dense, WORK).kernels[0]
    for block in kinds(shape):
        attention, more = block.attention, 0
        more += KERNELS_EXPERTS if isinstance(block.feed_forward, Experts) else 0
        more += KERNELS_LATENT if attention.kv_rank else 0
        more += KERNELS_LINEAR if attention.linear else 0
        more += KERNELS_INDEX if attention.index_heads else 0
        np.testing.assert_array_equal(block_times(where, block, WORK).kernels, np.full(3, plain + more))


def test_work_adds_up_and_repeats() -> None:
    """Of times: parts of both; of workloads: columns again, shifted by the span and a mean gap."""
    where = ranks(replica("gpt-oss-20b"))
    first, second = (block_times(where, block, WORK) for block in kinds(load_model("gpt-oss-20b")))
    for part in fields(ForwardTimes):
        item, other = getattr(first, part.name), getattr(second, part.name)
        np.testing.assert_array_equal(getattr(first + second, part.name), item + other)
        np.testing.assert_array_equal(getattr(first.times(3), part.name), item * 3)
    draws = np.random.default_rng(4)
    some = Workload(
        np.array([0.0, 1.0, 4.0]), *(draws.integers(1, 99, 3) for _ in range(4)),
        np.array([True, False, True]), draws.integers(1, 99, 3), models=("a", "b"), model=np.array([1, 0, 1]),
    )  # fmt: skip
    again = some.repeated(2)
    np.testing.assert_allclose(again.arrival_s, [0.0, 1.0, 4.0, 6.0, 7.0, 10.0])
    every, columns = np.tile(np.arange(3), 2), [field.name for field in fields(Workload)]
    chosen = some.chosen(every)
    for name in columns:
        if name in ("notes", "models"):
            continue
        np.testing.assert_array_equal(getattr(chosen, name), getattr(some, name)[every])
        if name != "arrival_s":
            np.testing.assert_array_equal(getattr(again, name), getattr(some, name)[every])
    assert [again.model_of(number) for number in range(6)] == ["b", "a", "b"] * 2


def test_an_end_that_a_stage_does_not_hold_takes_nothing() -> None:
    where = ranks(replica("llama3-8b"))
    none, both = end_times(where, WORK, False, False), end_times(where, WORK, True, True)
    parts = end_times(where, WORK, True, False) + end_times(where, WORK, False, True)
    for part in fields(ForwardTimes):
        np.testing.assert_array_equal(getattr(none, part.name), np.zeros(3))
        np.testing.assert_allclose(getattr(parts, part.name), getattr(both, part.name), rtol=1e-12)
