"""`tangram calibrate collectives`: logs of known tools become rows; cut logs and other tools are named."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tangram_validate.collectives import logs, ownfabric

from tangram_sim.clusters import Island
from tangram_sim.cost.collectives import all_gather_s, all_reduce_s, group
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tests.places import ROOT

HWDB = Hwdb.load()
SIZES = [2**power for power in range(10, 31)]
COLUMNS = "size count type redop root time algbw busbw #wrong time algbw busbw #wrong"


def priced(op: str, ranks: int, nodes: int = 1, gpu: str = "H100-SXM5-80GB", link: str = "NVLink4"):
    """Seconds of the product for every size: a fabric that does what the database says."""
    per_node = ranks // nodes
    latency = HWDB.collective("network", HWDB.link("IB-NDR")).hop_s
    where = Island("i", HWDB.gpu(gpu), nodes, per_node, HWDB.link(link), 50e9 * per_node, latency)
    over = group(where, np.array([ranks]), np.array([1]), HWDB)
    function = all_reduce_s if op == "all_reduce" else all_gather_s
    return [float(function(float(size), over)[0]) for size in SIZES]


def log_text(
    times, ranks: int, hosts: int = 1, factor: float = 1.0, name: str = "NVIDIA H100 80GB HBM3"
) -> str:
    """What nccl-tests prints for these times (s) of an all-reduce."""
    lines = ["# nccl-tests version 2.17.1 nccl-headers=22703 nccl-library=22703", "# Using devices"]
    lines += [
        f"#  Rank {rank:2d} Group  0 Pid 100 on node{rank * hosts // ranks} device  {rank} [0x07] {name}"
        for rank in range(ranks)
    ]
    lines += ["#", "#       out-of-place   in-place", f"#  {COLUMNS}", "#  (B) (elements) (us) (GB/s) (GB/s)"]
    for size, seconds in zip(SIZES, times, strict=True):
        taken = seconds * factor
        algbw = size / taken / 1e9
        bus = algbw * 2 * (ranks - 1) / ranks
        half = f"{taken * 1e6:.3f} {algbw:.4f} {bus:.4f} 0"
        lines.append(f"  {size} {size // 4} float sum -1 {half} {half}")
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 100.0", ""])


def run(path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tangram_sim.cli.main", "calibrate", "collectives", path, *more],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )


def test_a_healthy_log_gives_back_the_parameters_that_made_it(tmp_path):
    """Rows on standard output load as an overlay; the fabric is said to reach what it should."""
    path = tmp_path / "log.txt"
    path.write_text(log_text(priced("all_reduce", 4), 4))
    done = run(path)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    found = list(csv.DictReader(io.StringIO(done.stdout)))
    known = HWDB.collective("ring", HWDB.link("NVLink4"))
    values = {row["parameter"]: float(row["value"]) for row in found}
    assert values["rate_share"] == pytest.approx(known.rate_share, rel=0.05)
    assert {(row["link"], row["library"], row["version"]) for row in found} == {("NVLink4", "NCCL", "2.27.3")}
    overlay = tmp_path / "mine" / "collectives"
    overlay.mkdir(parents=True)
    (overlay / "mine.csv").write_text(done.stdout)
    mine = Hwdb.load([tmp_path / "mine"]).collective("ring", HWDB.link("NVLink4"))
    assert mine.rate_share == values["rate_share"]


@pytest.mark.parametrize("slow", [0.7, 1.0, 1.6, 3.0])
def test_rows_fit_the_log_that_they_were_fitted_to(tmp_path, slow):
    """Eight GPUs add up in the switch; below 16 MiB this fabric is faster or slower than the shipped rows.

    The shipped ring must not win there: points faster than it are the switch's, slower ones bound it.
    """
    times = [
        seconds * (slow if size < 2**24 else 1.0)
        for size, seconds in zip(SIZES, priced("all_reduce", 8), strict=True)
    ]
    path = tmp_path / "log.txt"
    path.write_text(log_text(times, 8))
    points = ownfabric.points_of(logs.read_log(path, ""), ownfabric.FabricParts(), "log", HWDB)
    sets = ownfabric.fit_own(points, HWDB, path)
    assert {item.pattern for item in sets} == ({"ring", "in_switch"} if slow > 1.0 else {"in_switch"})
    assert ownfabric.missed(points, sets, HWDB) < 0.06


def test_half_a_fabric_is_flagged(tmp_path):
    """Twice the time everywhere: 50 % of what the parts allow."""
    path = tmp_path / "log.txt"
    path.write_text(log_text(priced("all_reduce", 4), 4, factor=2.0))
    done = run(path, "--json")
    assert done.returncode == 0, done.stderr
    (reached,) = json.loads(done.stdout)["reached"]
    assert reached["share"] == pytest.approx(0.5, rel=0.01)
    assert reached["faulty"]
    assert "less than 60 %" in run(path).stderr


def test_more_than_the_fabric_can_is_flagged(tmp_path):
    """Times in another unit, or of other parts: half the time everywhere is 200 %."""
    path = tmp_path / "log.txt"
    path.write_text(log_text(priced("all_reduce", 4), 4, factor=0.5))
    done = run(path, "--json")
    (reached,) = json.loads(done.stdout)["reached"]
    assert reached["share"] == pytest.approx(2.0, rel=0.01)
    assert reached["implausible"] and not reached["faulty"]
    assert "more than its parts can" in run(path).stderr


def test_several_nodes_need_the_nics(tmp_path):
    """Hosts are counted from the log; NICs are not in it."""
    path = tmp_path / "log.txt"
    path.write_text(log_text(priced("all_reduce", 16, nodes=2), 16, hosts=2))
    refused = run(path)
    assert refused.returncode == 2
    assert "--nic-gbps" in refused.stderr
    done = run(path, "--nic", "IB-NDR", "--nic-gbps", "3200")
    assert done.returncode == 0, done.stderr
    found = {row["parameter"]: float(row["value"]) for row in csv.DictReader(io.StringIO(done.stdout))}
    assert found["hop_s"] == pytest.approx(HWDB.collective("network", HWDB.link("IB-NDR")).hop_s, rel=0.2)
    # Two nodes exchange through a tree: they do not say what a NIC delivers, so its share stays.
    assert found["rate_share"] == pytest.approx(HWDB.collective("network", HWDB.link("IB-NDR")).rate_share)


def test_a_torch_sweep_is_read(tmp_path):
    """op,bytes,ranks,nodes,seconds,backend; the GPU comes from a column or an option."""
    lines = ["op,bytes,ranks,nodes,seconds,backend,gpu"]
    for op in ("all_reduce", "all_gather"):
        lines += [
            f"{op},{size},4,1,{seconds:.9f},nccl,H100-SXM5-80GB"
            for size, seconds in zip(SIZES, priced(op, 4), strict=True)
        ]
    path = tmp_path / "sweep.csv"
    path.write_text("\n".join(lines) + "\n")
    log = logs.read_log(path)
    assert (log.library, log.gpu, len(log.measurements)) == ("NCCL", "H100-SXM5-80GB", 2 * len(SIZES))
    points = ownfabric.points_of(log, ownfabric.FabricParts(), "sweep", HWDB)
    (fitted,) = ownfabric.fit_own(points, HWDB, path)
    known = HWDB.collective("ring", HWDB.link("NVLink4"))
    assert fitted.fitted.values["base_s"] == pytest.approx(known.base_s, rel=0.05)
    assert all(item.share == pytest.approx(1.0, rel=0.01) for item in ownfabric.reached(points, HWDB))


GOOD = log_text(priced("all_reduce", 4), 4)
LAST = next(line for line in reversed(GOOD.splitlines()) if line.strip()[:1].isdigit())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD[: GOOD.index(LAST)], "summary that follows"),
        (GOOD[: GOOD.index(LAST) + len(LAST) // 2], "the line was cut"),
        (GOOD[: GOOD.index(COLUMNS) + len(COLUMNS)], "no measured line"),
        ("\n".join(line for line in GOOD.splitlines() if "Rank  2" not in line), "some are missing"),
        ("\n".join(line for line in GOOD.splitlines() if "Rank" not in line), "how many GPUs"),
        ("# OSU MPI Allreduce Latency Test\n# Size  Avg Latency(us)\n4 1.2\n", "neither output"),
        ("", "neither output"),
        (GOOD.replace(" sum ", " none "), "`op=`"),
        ("op,bytes,ranks,nodes,seconds\nall_reduce,1,2,1,1\n", "lacks backend"),
        ("op,bytes,ranks,nodes,seconds,backend\nall_reduce,1024,2,1,fast,nccl\n", "'fast' given"),
        ("op,bytes,ranks,nodes,seconds,backend\nall_reduce,1024,2\n", "cut or is damaged"),
        ("op,bytes,ranks,nodes,seconds,backend\ngossip,1024,2,1,1e-5,nccl\n", "gossip"),
        ("op,bytes,ranks,nodes,seconds,backend\nall_reduce,1024,3,2,1e-5,nccl\n", "equally many"),
        ("op,bytes,ranks,nodes,seconds,backend\n", "no measurement"),
    ],
)
def test_bad_logs_are_named(tmp_path, text, words):
    """Cut in the middle, of other tools, damaged: what is wrong, never a guess."""
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(BadInputError, match=words):
        logs.read_log(path)


def test_older_logs_without_inplace_names_or_versions(tmp_path):
    """rccl-tests of any age: the operation from the program's name, N/A for checks, no version."""
    text = log_text(priced("all_gather", 4), 4, name="AMD Instinct MI300X").replace(" sum ", " none ")
    lines = [line for line in text.splitlines() if "nccl-tests version" not in line]
    path = tmp_path / "log"
    path.write_text(
        "\n".join(["# ./all_gather_perf (rccl-tests) -b 1K -e 1G", *lines]).replace(" 0\n", " N/A\n")
    )
    log = logs.read_log(path)
    assert (log.library, log.version) == ("RCCL", "")
    assert {measurement.op for measurement in log.measurements} == {"all_gather"}
    points = ownfabric.points_of(log, ownfabric.FabricParts(gpu="MI300X"), "log", HWDB)
    assert {point.fabric.intra.name for point in points} == {"xGMI-MI300X"}


def test_too_few_sizes_make_no_row(tmp_path):
    """Three points cannot fix a curve."""
    path = tmp_path / "sweep.csv"
    rows = [f"all_reduce,{size},4,1,1e-4,nccl" for size in (1024, 2048, 4096)]
    path.write_text("\n".join(["op,bytes,ranks,nodes,seconds,backend", *rows]))
    points = ownfabric.points_of(logs.read_log(path), ownfabric.FabricParts(gpu="H100"), "s", HWDB)
    with pytest.raises(BadInputError, match="3 sizes"):
        ownfabric.fit_own(points, HWDB, path)
    with pytest.raises(BadInputError, match="names no GPU"):
        ownfabric.points_of(logs.read_log(path), ownfabric.FabricParts(), "s", HWDB)
