"""Workloads that are drawn, and engines' defaults: laws of shares, rates and rows."""

from dataclasses import replace

import numpy as np
import pytest

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.serving.build import deployment_of, precision_of
from tangram_sim.serving.calibration import CalibrationTable
from tangram_sim.serving.engines import engine_defaults, engine_names, release
from tangram_sim.serving.fleet_file import read_fleet
from tangram_sim.serving.kv import kv_capacity
from tangram_sim.serving.synthetic import LengthMix, arrivals, drawn_note, synthetic
from tests.records import HWDB as RECORDED

HWDB = Hwdb.load()
MIX = [LengthMix(100, 8, 0.5), LengthMix(400, 60, 1.5, cv=0.4)]


def test_shares_are_relative_and_equal_parts_are_one() -> None:
    """Twice all shares draw the same requests; a part in two halves is told as one."""
    workload = synthetic(400, 5.0, MIX, 3)
    two = synthetic(400, 5.0, [replace(part, share=8 * part.share) for part in MIX], 3)
    np.testing.assert_array_equal(workload.input_tokens, two.input_tokens)
    np.testing.assert_array_equal(workload.arrival_s, two.arrival_s)
    assert (workload.input_tokens == 100).mean() == pytest.approx(0.25, abs=0.06)
    plain = [replace(part, cv=0.0) for part in MIX]
    halves = [plain[0], replace(plain[1], share=0.75), replace(plain[1], share=0.75)]
    made = synthetic(400, 5.0, plain, 3)
    assert drawn_note(plain, 5.0, made, 3) == drawn_note(halves, 5.0, made, 3)
    assert "100:8 25.0 %" in drawn_note(halves, None, made, 3)


def test_lengths_spread_as_asked_around_their_means() -> None:
    """Log-normal: the mean stays, the standard deviation over it is cv; none is below one token."""
    made = synthetic(20_000, 5.0, [LengthMix(1000, 300, 1.0, cv=0.5)], 2)
    for tokens, mean in ((made.input_tokens, 1000), (made.output_tokens, 300)):
        assert tokens.mean() == pytest.approx(mean, rel=0.02)
        assert tokens.std() / tokens.mean() == pytest.approx(0.5, rel=0.05)
    assert synthetic(2000, 5.0, [LengthMix(1, 1, 1.0, cv=2.0)], 2).input_tokens.min() == 1


def test_arrivals_keep_their_rate_and_twice_the_rate_halves_every_gap() -> None:
    once, twice = arrivals(5000, 10.0, 4), arrivals(5000, 20.0, 4)
    np.testing.assert_allclose(once, 2 * twice, rtol=1e-12)
    assert 5000 / once[-1] == pytest.approx(10.0, rel=0.05)
    assert (np.diff(once) >= 0).all()


def test_gaps_spread_as_asked_from_even_to_bursts() -> None:
    """Mean 1 / rate and coefficient of variation of the gaps; what is no number of either is refused."""
    even = arrivals(50, 4.0, 1, 0.0)
    np.testing.assert_allclose(even, np.arange(50) / 4.0)
    for cv in (0.5, 1.0, 2.0):
        gaps = np.diff(arrivals(40_000, 4.0, 1, cv))
        assert gaps.mean() == pytest.approx(0.25, rel=0.05)
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)
    for wrong in (
        (0, 1.0, 1.0),
        (5, 0.0, 1.0),
        (5, float("inf"), 1.0),
        (5, 1.0, -0.1),
        (5, 1.0, float("inf")),
    ):
        with pytest.raises(BadInputError):
            arrivals(wrong[0], wrong[1], 1, wrong[2])


@pytest.mark.parametrize("gpu", ["H100-SXM5-80GB", "A100-SXM4-80GB", "T4"])
def test_defaults_are_those_of_the_newest_row_up_to_the_version_asked_for(gpu: str) -> None:
    """A version is told as asked; without one it is the row's own."""
    for name in engine_names(HWDB):
        newest = engine_defaults(HWDB, name, HWDB.gpu(gpu))
        assert newest.engine == name and newest.version
        same = engine_defaults(HWDB, name, HWDB.gpu(gpu), newest.version)
        assert same == newest
        later = engine_defaults(HWDB, name, HWDB.gpu(gpu), "999.1")
        assert later == replace(newest, version="999.1")
    assert release("0.15.1") == (0, 15, 1) and release("nightly") == ()


def replicas(*entries: dict[str, object]) -> dict[str, object]:
    costs = {"step_s": 0.01, "decode_s": 1e-4, "prompt_s": 2e-5, "kv_blocks": 400}
    return {"types": [[400, 60], [30, 5]], "replicas": [{"costs": costs, **entry} for entry in entries]}


def test_shares_of_a_fleet_are_split_over_equal_replicas_and_told_by_name() -> None:
    fleet = read_fleet(replicas({"name": "a", "count": 2, "shares": [1.0, 0.5]}, {"name": "b"}), HWDB)
    assert fleet.shares == {"0.0: a": (0.5, 0.25), "0.1: a": (0.5, 0.25)}
    assert [replica.name for replica in fleet.replicas] == ["0.0: a", "0.1: a", "1: b"]
    assert fleet.gpus == {"0.0: a": {"a": 1}, "0.1: a": {"a": 1}, "1: b": {"b": 1}}
    with pytest.raises(BadInputError, match="1 shares, `types` has 2"):
        read_fleet(replicas({"name": "a", "shares": [1.0]}), HWDB)


def test_models_are_of_all_replicas_or_of_none() -> None:
    every = read_fleet(replicas({"name": "a", "model": "one"}, {"name": "b", "model": "two"}), HWDB)
    assert every.models == ("one", "two")
    for some in ({"model": "one"}, {}), ({}, {"model": "one"}):
        with pytest.raises(BadInputError, match="some replicas have a `model` of their own"):
            read_fleet(replicas({"name": "a", **some[0]}, {"name": "b", **some[1]}), HWDB)


def test_roles_are_whole_or_in_pairs() -> None:
    for roles in (("prefill",), ("decode",), ("both", "prefill", "decode")):
        with pytest.raises(BadInputError, match=r"use one or the other|need others"):
            read_fleet(replicas(*({"name": role, "role": role} for role in roles)), HWDB)


def test_more_memory_and_fewer_bits_hold_more_blocks() -> None:
    """And a request's state takes as many tokens' room as its length shares it out over."""
    model = load_model("qwen3.5-397b-a17b")
    engine = engine_defaults(RECORDED, "vllm", RECORDED.gpu("H200-SXM-141GB"))
    fits = CalibrationTable.load(RECORDED)

    def blocks(precision: str, kv: str = "auto", longest: int = 0, share: float = 0.9) -> int:
        where = deployment_of(
            model, "H200-SXM-141GB", RECORDED, replace(engine, memory_fraction=share),
            precision=precision_of(precision, model, kv), tp=8,
        )  # fmt: skip
        return kv_capacity(where, RECORDED, fits.fit_of(where), longest).blocks

    assert blocks("fp8") > blocks("bf16")
    assert blocks("fp8", "fp8") == pytest.approx(2 * blocks("fp8", "bf16"), rel=1e-3)
    assert blocks("fp8", share=0.95) > blocks("fp8")
    short, long, none = (blocks("fp8", longest=item) for item in (1000, 100_000, 0))
    assert short < long < none
