"""What more GPUs would do for a service: more never hurts, figures belong together, bad input is named."""

import json
from pathlib import Path
from statistics import median

import pytest

from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.hwdb.prices import assumed_rent, gpu_rent, gpu_rents
from tangram_sim.serving_planners.offer_file import load_offers
from tangram_sim.studies import serving_whatif
from tangram_sim.studies.candidate_loop import NO_TIME
from tangram_sim.studies.serving_plan import PlayedPlanDocument, ServePlanDocument
from tangram_sim.studies.serving_question import AskedType, ServiceGoal
from tangram_sim.studies.serving_whatif import GpuPurchase, what_if_serving
from tests.commands import tangram

FLEET = "gpus:\n  L40S: {price_per_hour: 0.9, available: 1}\n"


@pytest.fixture
def asked(tmp_path: Path) -> tuple[object, ...]:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    return (
        "serve",
        "what-if",
        "llama3-8b",
        "--fleet",
        file,
        "--workload",
        "800:200:0.6,300:40:0.4",
        "--rate",
        4,
    )


def test_more_gpus_serve_more_and_their_cost_is_told(asked: tuple[object, ...]) -> None:
    told = tangram(
        *asked, "--requests", 400, "--add", "L40S:1", "--add", "A100-SXM4-80GB:1@1.75", "--json"
    ).json
    now, twice, mixed = told["candidates"]
    assert now["good_rps"] < twice["good_rps"]
    assert now["good_rps"] < mixed["good_rps"]
    assert (twice["usd_per_hour"], mixed["usd_per_hour"]) == (pytest.approx(1.8), pytest.approx(2.65))
    for item in told["candidates"]:
        a_million = item["usd_per_hour"] / (item["good_output_tok_s"] * 3600) * 1e6
        assert item["usd_per_million_tokens"] == pytest.approx(a_million)
    gain = (twice["good_output_tok_s"] - now["good_output_tok_s"]) * 3600 / 0.9
    assert twice["more_tokens_per_usd"] == pytest.approx(gain)


def test_a_purchase_has_its_own_plan_where_the_fleet_alone_cannot_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is there already may serve in place of a purchase; another purchase is not there."""
    (tmp_path / "fleet.yaml").write_text(FLEET)
    hwdb = Hwdb.load()
    offers = load_offers(tmp_path / "fleet.yaml", hwdb)

    def planned(models: object, fleet: object, *_: object, **__: object) -> ServePlanDocument:
        bought = {gpu.name: int(gpu.available) for gpu in fleet.gpus if gpu.name != "L40S"}
        if not bought:
            raise InfeasibleError("no configuration holds the model")
        rate = float(sum(bought.values()))
        played = PlayedPlanDocument(
            promised=rate, played=rate, error=0, good_share=1, ttft_p99_s=1, tpot_p99_s=1, simulate_cpu_s=0
        )
        return ServePlanDocument(
            status="optimal",
            objective="goodput",
            replay=played,
            gpus_used=bought,
            types=[AskedType(input_tokens=10, output_tokens=10, amount=1)],
        )

    monkeypatch.setattr(serving_whatif, "plan_service", planned)
    purchases = {name: [GpuPurchase(name, count, 2.0)] for name, count in (("H200-SXM", 4), ("T4", 1))}
    now, large, small = what_if_serving({}, offers, purchases, None, hwdb, ServiceGoal()).candidates
    assert now.status == "infeasible"
    assert (large.good_rps, large.gpus_used) == (4, {"H200-SXM": 4})
    assert (small.good_rps, small.gpus_used) == (1, {"T4": 1})


def test_a_page_of_candidates(asked: tuple[object, ...], tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    shown = tangram(*asked, "--requests", 100, "--add", "L40S:1", "-o", page)
    assert f"report written to {page}" in shown.out
    assert "L40S:1" in page.read_text() and "the fleet as it is" in page.read_text()


def test_clusters_are_fleets_at_dated_prices(tmp_path: Path) -> None:
    """A name, nodes on one line, a file; prices that the file does not state are those of nodes."""
    hwdb = Hwdb.load()
    inline = load_offers("DGX-H100:1+T4x4:2", hwdb)
    found = {gpu.name: (gpu.available, gpu.gpus_per_node) for gpu in inline.gpus}
    assert found["H100-SXM5-80GB"] == (8, 8) and found["T4"] == (8, 4)
    assert all(gpu.usd_per_hour > 0 for gpu in inline.gpus) and len(inline.notes) == 2
    assert [gpu.name for gpu in load_offers("azure-c1", hwdb, priced=False).gpus]
    lab = "name: lab\nnodes:\n  - {count: 2, gpu: L40S, gpus: 4, intra_link: PCIe4x16, nic_gbps: 200}\n"
    (tmp_path / "lab.yaml").write_text(lab)
    (lab_gpu,) = load_offers(tmp_path / "lab.yaml", hwdb).gpus
    assert (lab_gpu.name, lab_gpu.available, lab_gpu.gpus_per_node) == ("L40S", 8, 4)
    (tmp_path / "free.yaml").write_text("gpus: {L40S: {available: 2}}\n")
    (known,) = load_offers(tmp_path / "free.yaml", hwdb).gpus
    assert known.usd_per_hour == lab_gpu.usd_per_hour > 0.1


def test_a_price_is_asked_for_only_where_there_is_a_budget(tmp_path: Path) -> None:
    hwdb = Hwdb.load()
    unknown = next(name for name in hwdb.gpu_names() if not gpu_rent(hwdb, name)[0])
    (tmp_path / "f.yaml").write_text(f"gpus: {{{unknown}: {{available: 2}}}}\n")
    free = load_offers(tmp_path / "f.yaml", hwdb, priced=False)
    (gpu,) = free.gpus
    assert free.unpriced == {gpu.name} and gpu.usd_per_hour == assumed_rent(hwdb, unknown) > 0
    assert free.notes[0].startswith(f"no dated price of {gpu.name} is known: ")
    with pytest.raises(BadInputError, match=r"what does a .* cost"):
        load_offers(tmp_path / "f.yaml", hwdb)


def test_assumed_prices_are_near_those_that_are_known() -> None:
    """Prices of kinds that have one, as if they had none."""
    hwdb = Hwdb.load()
    factors = [assumed_rent(hwdb, name) / usd for name, (usd, _, _) in gpu_rents(hwdb).items()]
    assert 0.9 < median(factors) < 1.1
    assert sum(0.5 <= factor <= 2.0 for factor in factors) >= 0.85 * len(factors) > 20


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--add", "L40S"), "write NODE:COUNT"),
        (("--add", "L40S:0"), "write NODE:COUNT"),
        (("--add", "L41S:2"), "unknown GPU"),
        (("--add", "H20-96GB:2"), "say what it costs"),
        (("--budget", 3), "No such option"),
    ],
)
def test_bad_purchases_are_named(asked: tuple[object, ...], options: tuple[object, ...], words: str) -> None:
    shown = tangram(*asked, *options)
    assert (shown.code, words in shown.err) == (2, True), shown.err


def test_a_kind_that_the_fleet_lacks_is_rented_at_the_lowest_rent_known(asked: tuple[object, ...]) -> None:
    usd, _ = gpu_rent(Hwdb.load(), "H200-SXM-141GB")
    told = tangram(*asked, "--requests", 100, "--add", "H200:2", "--time-limit", 0, "--json").json
    now, more = told["candidates"]
    assert more["usd_per_hour"] - now["usd_per_hour"] == pytest.approx(2 * usd)
    assert any(note.startswith("price of H200") for note in told["notes"])


def test_with_no_time_the_fleet_is_planned_and_others_are_named(asked: tuple[object, ...]) -> None:
    told = tangram(*asked, "--requests", 100, "--add", "L40S:1", "--time-limit", 0, "--json").json
    now, twice = told["candidates"]
    assert now["good_rps"] > 0
    assert (twice["status"], twice["reason"]) == ("stopped", NO_TIME)


def test_the_fleet_may_follow_the_model() -> None:
    """As an argument it is the option's value; it is asked for where it is missing, and taken once."""
    words = ("--workload", "200:20", "--rate", "2", "--requests", "50", "--json")
    argument, option = (
        json.loads(tangram("serve", "what-if", "llama3-8b", *fleet, *words).out)
        for fleet in (("L40Sx4:1",), ("--fleet", "L40Sx4:1"))
    )
    assert argument["question"] == option["question"] and argument["candidates"]
    assert "--fleet is missing" in tangram("serve", "what-if", "llama3-8b", *words).err
    twice = tangram("serve", "what-if", "llama3-8b", "L40Sx4:1", "--fleet", "T4x4:1", *words)
    assert twice.code == 2 and "given twice: L40Sx4:1 and T4x4:1" in twice.err
