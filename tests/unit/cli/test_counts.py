"""Sequence lengths and batches as people write them."""

import json

import pytest

from tangram_sim import written
from tangram_sim.cli.models import folded
from tangram_sim.errors import BadInputError, UnknownNameError
from tangram_sim.fields import leaves
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.usable import usable_islands
from tangram_sim.studies import api
from tangram_sim.studies.search_options import named_islands
from tangram_sim.training.job import Job
from tests.commands import tangram


@pytest.mark.parametrize(
    ("given", "meant"),
    [("8k", 8192), ("8K", 8192), ("8,192", 8192), ("8192", 8192), ("1.5k", 1536), (" 8 k", 8192)],
)
def test_lengths_are_read_as_people_write_them(given: str, meant: int) -> None:
    """8k is 8,192, as in the names of models with long contexts."""
    told = tangram("estimate", "gpt3-125m", "DGX-H100:1", "--seq", given, "--global-batch", "1k", "--json")
    job = json.loads(told.out)["job"]
    assert (job["seq"], job["global_batch"]) == (meant, 1024)


@pytest.mark.parametrize("given", ["k", "8q", "2.0001k", "8kk", "1e3k", "1/2k", ""])
def test_what_is_no_length_is_refused_with_an_example(given: str) -> None:
    finished = tangram("estimate", "gpt3-125m", "DGX-H100:1", "--seq", given)
    assert finished.code == 2 and "e.g. 8192 or 8k" in " ".join(finished.err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("given", "meant"), [("90", 90), ("10s", 10), ("2m", 120), ("1.5 min", 90), ("1h", 3600), (7, 7)]
)
def test_limits_are_read_as_people_write_them(given: str | float, meant: float) -> None:
    assert written.seconds(str(given)) == meant


@pytest.mark.parametrize("given", ["", "s", "10 parsecs", "ten", "10ss", "1m30"])
def test_what_is_no_limit_is_refused_with_an_example(given: str) -> None:
    with pytest.raises(ValueError, match=r"give seconds, e\.g\. 90, or 90s, 2m, 1h"):
        written.seconds(given)
    finished = tangram("plan", "gpt3-125m", "DGX-H100:1", f"--time-limit={given}")
    assert finished.code == 2
    assert "Usage" not in finished.err


def test_margins_may_be_per_cent() -> None:
    assert written.margin("10%") == written.margin(" 10 % ") == written.margin("0.1")
    with pytest.raises(ValueError, match=r"e\.g\. 0\.1 or 10%"):
        written.margin("%")


@pytest.mark.parametrize(("dtype", "meant"), [("bfloat16", "bf16"), ("Float16", "fp16"), ("BF16", "bf16")])
def test_formats_and_schedules_go_by_their_usual_names_too(dtype: str, meant: str) -> None:
    told = tangram(
        *("estimate", "gpt3-125m", "DGX-H100:1", "--seq", "1k", "--global-batch", 8, "--json"),
        *("--dtype", dtype, "--schedule", "1F1B"),
    )
    job = json.loads(told.out)["job"]
    assert (job["dtype"], job["schedule"]) == (meant, "1f1b")
    (schedule,) = [leaf for leaf in leaves(Job) if leaf.name == "schedule"]
    assert schedule.about.reads is not None and schedule.about.reads("Our-Own") == "Our-Own"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("2xH100x8", "H100x8:2"),
        ("2 * H100x8", "H100x8:2"),
        ("H100x8*2", "H100x8:2"),
        ("H100x8x2", "H100x8:2"),
        ("2xH100x8+T4x4", "H100x8:2+T4x4:1"),
        ("3xDGX-H100", "DGX-H100:3"),
    ],
)
def test_nodes_counted_otherwise_are_answered_with_what_to_write(given: str, meant: str) -> None:
    with pytest.raises(BadInputError, match=f"write {meant}$".replace("+", "[+]")):
        load_cluster(given)


@pytest.mark.parametrize("given", ["2xNothing", "0xH100x8", "x", "2x", "azure-c9"])
def test_what_is_no_nodes_is_an_unknown_cluster(given: str) -> None:
    with pytest.raises(UnknownNameError, match="unknown cluster"):
        load_cluster(given)


def test_islands_go_by_the_name_of_their_only_kind_of_gpu() -> None:
    hwdb, job = Hwdb.load(), Job(8, 1024, "bf16")
    cluster = load_cluster("H100x8:1+A100-PCIe-80GBx4:1+A100-SXM4-40GBx4:1", hwdb)
    islands, _ = usable_islands(cluster, job, hwdb, SearchOptions())
    kind = {island.name: island.gpu.name for island in islands}

    def left_out(*names: str) -> list[str]:
        return [kind[name] for name in named_islands(SearchOptions(exclude=names), islands).exclude]

    assert left_out("h100") == [name for name in kind.values() if name.startswith("H100")]
    assert left_out("A100-PCIe") == ["A100-PCIe-80GB"]
    assert left_out(next(iter(kind))) == [next(iter(kind.values()))]
    both = named_islands(SearchOptions(exclude=("A100",)), islands)
    assert both.exclude == ("A100",)
    with pytest.raises(UnknownNameError, match=r"Such GPUs are in g\d \(A100-\S+\), g\d \(A100-\S+\)"):
        usable_islands(cluster, job, hwdb, both)
    with pytest.raises(UnknownNameError, match=r"prints\.$"):
        usable_islands(cluster, job, hwdb, SearchOptions(exclude=("B300",)))


def test_the_number_format_is_chosen_without_gpus_left_out_by_name() -> None:
    """Old GPUs that nobody may use ask for no fp16, whether they are left out by group or by name."""
    cluster = load_cluster("H100x8:1+V100x8:1")
    job, hwdb, model = Job(8, 512), Hwdb.load(), load_model("gpt3-125m")

    def planned(**given: tuple[str, ...]) -> list[str]:
        wishes = SearchOptions(time_limit_s=0, **given)  # type: ignore[arg-type]
        found = api.plan(model, cluster, job, wishes=wishes, hwdb=hwdb).document
        return [found.job.dtype, *found.notes]

    for given in (planned(exclude=("V100",)), planned(order=("H100",))):
        assert given[0] == "bf16" and not any("which leaves out" in note for note in given)
    assert planned(exclude=("V100",)) == planned(exclude=("g1",))


def test_layers_that_repeat_are_told_once() -> None:
    assert folded(["1 x a", "1 x b"] * 23 + ["1 x a"]) == "23 x (1 x a + 1 x b) + 1 x a"
    assert folded(["3 x a", "58 x b"]) == "3 x a + 58 x b"
    assert folded(["5 x a"]) == "5 x a"
    assert folded(["2 x a"] + ["1 x b", "1 x c", "1 x d"] * 2) == "2 x a + 2 x (1 x b + 1 x c + 1 x d)"
