"""What stacks share, what their own parameters are worth elsewhere, and rows that stay."""

from pathlib import Path

import numpy as np
from tangram_validate.calibration import stackfit, stacks, surfaces
from tangram_validate.calibration.surfaces import StackParameters

from tests.unit.validation.synthetic_runs import cases, synthetic


def test_attention_has_one_factor_for_all_stacks() -> None:
    """A stack whose attention alone is slower keeps what all others have."""
    surface = synthetic(80, 9)
    truth = StackParameters(1.2, 1.2, 20e-6, 0.8, 1.2)
    measured = surface.seconds(truth)
    measured[40:] = surface.seconds(truth._replace(attention_scale=1.6))[40:]
    runs = cases(surface, measured, ["a"] * 40 + ["b"] * 40, ["nemo"] * 40 + ["fsdp"] * 40)
    fits = stackfit.fit_stacks(runs, np.ones(80, bool))
    factors = [fits[name].parameters.attention_scale for name in ("generic", "nemo", "fsdp", "jax")]
    assert max(factors) / min(factors) < 1.05 and 1.05 < factors[0] < 1.6


def test_a_table_says_what_a_stack_s_own_parameters_are_worth_elsewhere() -> None:
    surface = synthetic(120, 10)
    measured = surface.seconds(StackParameters(1.2, 1.2, 20e-6, 0.8, 1.2))
    measured[:80] *= 1.2  # one stack is slower wherever it runs
    source = ["a"] * 40 + ["b"] * 40 + ["c"] * 40
    runs = cases(surface, measured, source, ["nemo"] * 80 + ["fsdp"] * 40)
    left = stackfit.left_out(runs, runs.source)
    lines = stacks.worth_table(runs, left.fits).splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    table = {(row[0], row[1]): row[2:] for row in rows}
    assert table["nemo", "a"][1] == "b" and table["fsdp", "c"][1] == "none"
    own, lineage, generic = (float(cell) for cell in table["nemo", "a"][2:])
    assert own < lineage <= generic + 0.1


def test_rows_of_a_stack_stay_as_they_were(tmp_path: Path) -> None:
    head = ",".join(surfaces.HEADER)
    before, now = (f"{head}\n*,*,stack,generic,,x,{n}\n*,*,stack,nemo,,x,{n}\n" for n in (1, 2))
    (tmp_path / "stacks.csv").write_text(before)
    kept = stacks.keeping(now, tmp_path / "stacks.csv", "generic")
    assert kept == f"{head}\n*,*,stack,generic,,x,1\n*,*,stack,nemo,,x,2\n"
    assert stacks.keeping(now, tmp_path / "none.csv", "generic") == now
    assert stacks.keeping(now, tmp_path / "stacks.csv", "") == now
