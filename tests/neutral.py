"""The hardware database under a stack that adds nothing: for tests of physics, not of software."""

import tempfile
from pathlib import Path

from tangram_sim.hwdb import Hwdb

ROWS = """gpu,dtype,kernel,stack,parameter,value,sigma,n,source
*,*,stack,generic,time_scale,1,0.1,0,assumed
*,*,stack,generic,attention_scale,1,0.2,0,assumed
*,*,stack,generic,tensor_exposed,1,0.2,0,assumed
*,*,stack,generic,data_exposed,1,0.3,0,assumed
*,*,dispatch,generic,seconds,5e-6,2e-6,0,assumed
*,*,stack,generic,residual,0.4,0,0,assumed
*,*,stack,generic,residual_unmeasured,0.447,0,0,assumed
*,*,stack,calibrated,residual,0.4,0,0,assumed
*,*,stack,calibrated-elsewhere,residual,0.4,0,0,assumed
*,*,stack,sister,residual,0.4,0,0,assumed
*,*,stack,generic,residual_mixture,0,0,0,assumed
*,*,stack,generic,residual_source,0.35,0,0,assumed
*,*,stack,calibrated,residual_source,0.35,0,0,assumed
*,*,stack,calibrated-elsewhere,residual_source,0.35,0,0,assumed
*,*,stack,sister,residual_source,0.35,0,0,assumed
*,*,stack,calibrated,residual_plan,0.1,0,0,assumed
*,*,stack,generic,residual_plan,0.1,0,0,assumed
"""


def neutral_folder(folder: Path) -> Path:
    """An overlay (--hwdb) with those rows, made in `folder`."""
    place = folder / "efficiency"
    place.mkdir(parents=True, exist_ok=True)
    (place / "neutral.csv").write_text(ROWS, encoding="utf-8")
    return folder


def neutral_hwdb(*overlays: Path) -> Hwdb:
    """The database with those rows, and `overlays` above them."""
    with tempfile.TemporaryDirectory() as name:
        return Hwdb.load([neutral_folder(Path(name)), *overlays])
