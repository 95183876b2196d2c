"""Words for a calibration: fitted parameters, errors on shapes held out, errors of borrowed constants."""

from collections.abc import Iterable, Sequence

from tangram_sim.hwdb import Hwdb
from tangram_validate.calibration import tables
from tangram_validate.calibration.gemm import OPERANDS, transfer_errors
from tangram_validate.calibration.rows import FITTED_DTYPES, KindFits, device


def fits_text(fits: Iterable[KindFits]) -> str:
    """One line per GPU kind and dtype, and one per attention fit."""
    lines = [f"{'gpu':30} {'dtype':9} {'gemm':>6} {'memory':>6} {'launch':>8} {'n':>7} {'big':>6} {'all':>6}"]
    for kind in fits:
        for dtype, fit in kind.gemm.items():
            values = fit.parameters
            lines.append(
                f"{kind.gpu:30} {dtype:9} {values.efficiency:6.3f} {values.memory_efficiency:6.3f} "
                f"{1e6 * values.launch_s:5.1f} us {fit.n:7d} "
                f"{100 * fit.big_error:4.1f} % {100 * fit.error:4.1f} %"
            )
        core = kind.attention
        lines.append(
            f"{kind.gpu:30} attention {core.efficiency:6.3f} {'':15} {core.n:7d} {100 * core.error:4.1f} %"
        )
    lines.append(
        "big: median error of held-out shapes with m, n, k >= 1024; launch of fp8 and nvfp4 has the casts'"
    )
    return "\n".join(lines) + "\n"


def transfer_text(database: Hwdb, fits: Sequence[KindFits], donor: str) -> str:
    """Errors of one kind's bf16 constants on every other kind's tables: what to expect where none exist."""
    borrowed = next(kind.gemm["bfloat16"].parameters for kind in fits if kind.gpu == donor)
    lines = [f"constants of {donor} on other datasheets, bf16: median error big / all"]
    for kind in fits:
        if kind.gpu != donor:
            table = tables.gemm_table(kind.system, "bfloat16")
            big, everything = transfer_errors(
                table, OPERANDS["bfloat16"], device(database, kind.gpu, "bf16"), borrowed
            )
            lines.append(f"{kind.gpu:30} {100 * big:5.1f} % {100 * everything:5.1f} %")
    return "\n".join(lines) + "\n"


def left_out_text(database: Hwdb, fits: Iterable[KindFits]) -> str:
    """Which measured dtypes got no row because gpus.csv states no peak to relate them to."""
    lines = [
        f"{kind.gpu}: no {column} peak in gpus.csv, no row"
        for kind in fits
        for dtype, (column, _) in FITTED_DTYPES.items()
        if dtype not in kind.gemm
        and device(database, kind.gpu, column).peak_flop_per_s <= 0
        and len(tables.gemm_table(kind.system, dtype).m)
    ]
    return "".join(f"{line}\n" for line in lines)
