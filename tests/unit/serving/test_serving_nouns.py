"""Nouns of serving: precisions, graph buckets, speculation, the linearised step."""

from dataclasses import replace

import numpy as np
import pytest

from tangram_sim.precision import PRECISIONS, STORED_BYTES
from tangram_sim.serving.costs import graph_bucket
from tangram_sim.serving.deployment import Speculation
from tangram_sim.serving.stepcost import StepTable


@pytest.mark.parametrize("name", PRECISIONS)
def test_precisions_name_types_that_have_a_size(name: str) -> None:
    precision = PRECISIONS[name]
    assert precision.weight_bytes == STORED_BYTES[name]
    assert precision.weight_bytes <= precision.end_bytes <= 4.0


def test_a_graph_bucket_holds_its_batch_and_no_smaller_one_does() -> None:
    buckets = graph_bucket(np.arange(1.0, 600.0), 512).tolist()
    assert all(bucket >= batch for batch, bucket in enumerate(buckets, 1))
    assert buckets == sorted(buckets)
    assert buckets[8:16] == [16] * 8 and buckets[257] == 272 and buckets[512] == 513


def test_speculation_yields_the_expected_run_of_accepted_drafts() -> None:
    """By hand: a run of i accepted drafts has probability a^i (1 - a), and yields i + 1 tokens."""
    chance = 0.7
    by_hand = sum(chance**run * (1 - chance) * (run + 1) for run in range(3)) + chance**3 * 4
    assert Speculation(3, chance).tokens == pytest.approx(by_hand)
    assert Speculation(3, 1.0).tokens == 4.0


def test_a_table_bends_where_contexts_leave_the_window() -> None:
    table = StepTable(
        decode_s=np.array([0.0, 1.0, 2.0]),
        context_s=np.array([0.0, 0.1, 0.1]),
        window_s=np.array([0.0, 1.0, 1.0]),
        window_tokens=4,
        row_knots=np.array([1.0, 11.0]),
        rows_s=np.array([1.0, 2.0]),
        score_s=0.5,
        mixed_context_s=0.1,
        beside_s=np.array([0.0, 0.25, 0.5]),
    )
    assert table.decode_step_s(2, 8) == pytest.approx(2 + 0.8 + 8)
    assert table.decode_step_s(2, 20) == pytest.approx(2 + 2.0 + 8)
    assert table.mixed_step_s(5, 20, 1, 10) == pytest.approx(1.5 + 10.0 + 1.0 + 0.25)
    windowed = replace(table, mixed_window_s=0.5)
    assert windowed.mixed_step_s(5, 20, 1, 10) == pytest.approx(1.5 + 10.0 + 1.0 + 0.25 + 0.5 * 4)
    assert table.mixed_step_s(5, 2, 1, 10) == table.decode_step_s(1, 10) == pytest.approx(1 + 1.0 + 4)
    bounded = replace(table, window_s=np.zeros(3), least_s=np.array([1.0, 0.1, 0.25, 0.5, 0.2, 0.125, 0.5]))
    assert bounded.mixed_step_s(5, 2, 1, 10) == pytest.approx(1.0 + 0.5 + 0.5 + 0.5 + 2.0 + 0.25 + 2.0)
    rows, decodes, contexts = np.array([5.0, 1.0, 8.0]), np.array([1, 2, 2]), np.array([10.0, 4.0, 20.0])
    each = [
        bounded.mixed_step_s(float(n), 2.0 * n, int(b), float(c))
        for n, b, c in zip(rows, decodes, contexts, strict=True)
    ]
    assert bounded.mixed_steps_s(rows, 2.0 * rows, decodes, contexts).tolist() == pytest.approx(each)
