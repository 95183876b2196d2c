"""The GPU instances of six clouds are found by the names people type, with their GPUs and a dated price."""

from pathlib import Path

import pytest

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb, load_cluster
from tangram_sim.hwdb.price_listing import read_listing, write_prices
from tangram_sim.hwdb.prices import node_prices
from tangram_sim.purchasing.notes import this_day
from tests.unit.hwdb.tables import cells, row_of

TYPED = {
    "p3.8xlarge": ("V100-SXM2-16GB", 4),
    "p4de.24xlarge": ("A100-SXM4-80GB", 8),
    "p5.4xlarge": ("H100-SXM5-80GB", 1),
    "p6-b300": ("B300-HGX", 8),
    "p6e-gb200.36xlarge": ("GB200", 4),
    "u-p6e-gb200x72": ("GB200", 72),
    "g4dn.12xlarge": ("T4", 4),
    "g5.24xlarge": ("A10G", 4),
    "gr6.4xlarge": ("L4", 1),
    "g6e.48xlarge": ("L40S", 8),
    "a2-megagpu-16g": ("A100-SXM4-40GB", 16),
    "a2-ultra": ("A100-SXM4-80GB", 8),
    "a3-mega": ("H100-SXM5-80GB", 8),
    "a3-highgpu-4g": ("H100-SXM5-80GB", 4),
    "A3 Ultra": ("H200-SXM-141GB", 8),
    "a4": ("B200-HGX", 8),
    "a4x-highgpu-4g": ("GB200", 4),
    "g2-standard-48": ("L4", 4),
    "g4-standard-384": ("RTX-PRO-6000-Blackwell-Server", 8),
    "Standard_NC48ads_A100_v4": ("A100-PCIe-80GB", 2),
    "NC6s v3": ("V100-PCIe-16GB", 1),
    "ND H100 v5": ("H100-SXM5-80GB", 8),
    "nd gb200 v6": ("GB200", 4),
    "ND128isr_GB300_v6": ("GB300", 4),
    "NV36ads A10 v5": ("A10", 1),
    "NDv2": ("V100-SXM2-32GB", 8),
    "BM.GPU.B300.8": ("B300-HGX", 8),
    "bm.gpu.l40s.4": ("L40S", 4),
    "gd-8xh100ib-i128": ("H100-SXM5-80GB", 8),
    "CoreWeave GB300": ("GB300", 4),
    "gpu_8x_a100_80gb_sxm4": ("A100-SXM4-80GB", 8),
    "gpu_1x_gh200": ("GH200-96GB", 1),
}
CLOUDS = ("aws", "gcp", "azure", "oci", "coreweave", "lambda")


@pytest.mark.parametrize("name", TYPED)
def test_a_typed_instance_name_is_a_fleet_of_its_gpus(name: str) -> None:
    group = load_cluster(f"{name}:2").groups[0]
    assert (group.node.gpu.name, group.node.gpus, group.count) == (*TYPED[name], 2)


def test_a_share_of_a_machine_names_a_larger_machine_of_the_same_cloud_and_kind() -> None:
    for node in cells("nodes"):
        if node["slice_of"]:
            whole = row_of("nodes", node["slice_of"])
            assert (whole["provider"], whole["gpu"]) == (node["provider"], node["gpu"]), node["name"]
            assert int(whole["gpus"]) > int(node["gpus"]) and not whole["slice_of"], node["name"]


def test_every_cloud_has_priced_nodes_and_every_price_is_positive_and_of_the_past() -> None:
    hwdb = Hwdb.load()
    prices = node_prices(hwdb)
    for cloud in CLOUDS:
        named = [node["name"] for node in cells("nodes") if node["provider"] == cloud]
        assert sum(name in prices for name in named) * 2 > len(named), cloud
    for node, figures in prices.items():
        for key, figure in figures.items():
            assert figure.value > 0 and figure.source, (node, key)
            assert figure.date <= this_day().isoformat(), (node, key)


def test_a_spot_or_reserved_price_is_below_the_price_on_demand() -> None:
    for node, figures in node_prices(Hwdb.load()).items():
        rent = figures.get("rent_usd_per_hour")
        for key in ("spot_usd_per_hour", "reserved_usd_per_hour"):
            if rent and key in figures:
                assert figures[key].value < rent.value, (node, key)


def test_a_listing_renews_prices_of_known_nodes_and_counts_the_others(tmp_path: Path) -> None:
    listing = tmp_path / "vms.csv"
    listing.write_text(
        "InstanceType,AcceleratorName,Price,SpotPrice,Region\n"
        "p5.48xlarge,H100,60.5,20.5,us-east-1\n"
        "p5.48xlarge,H100,55.5,21.5,us-east-2\n"
        "a2-highgpu-8g,,5.9,2.9,us-central1\n"
        "m5.large,,0.096,,us-east-1\n"
        "x9.tiny,X9,1.0,,us-east-1\n"
    )
    hwdb = Hwdb.load()
    found = read_listing(listing, hwdb)
    assert {(price.node, price.figure): price.value for price in found.prices} == {
        ("p5.48xlarge", "rent_usd_per_hour"): 55.5,
        ("p5.48xlarge", "spot_usd_per_hour"): 20.5,
    }
    assert found.unknown == 1
    there = read_listing(listing, hwdb, "us-east-1")
    assert max(price.value for price in there.prices) == 60.5
    for _ in range(2):  # writing again changes nothing
        path = write_prices(found, tmp_path / "rows", "a listing", this_day())
    assert len(path.read_text().splitlines()) == 3
    renewed = node_prices(Hwdb.load((tmp_path / "rows",)))["p5.48xlarge"]
    assert renewed["rent_usd_per_hour"].value == 55.5 and renewed["spot_usd_per_hour"].source == "a listing"


def test_a_feed_in_json_is_read_at_any_depth(tmp_path: Path) -> None:
    feed = tmp_path / "feed.json"
    feed.write_text(
        '{"as_of": "2026-11-27", "aws": {"region": "us-east-1", "instances": ['
        '{"sku": "g6e.48xlarge", "hourly_usd": 30.0, "spot_hourly_usd": 12.0}]}}'
    )
    prices = read_listing(feed, Hwdb.load()).prices
    assert [(price.node, price.figure, price.value) for price in prices] == [
        ("g6e.48xlarge", "rent_usd_per_hour", 30.0),
        ("g6e.48xlarge", "spot_usd_per_hour", 12.0),
    ]


def test_a_file_without_prices_is_refused_by_name(tmp_path: Path) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_text("colour,weight\nred,3\n")
    with pytest.raises(BadInputError, match=r"empty\.csv: no records with a name"):
        read_listing(empty, Hwdb.load())


def test_a_feed_of_azure_gives_hours_on_demand_and_on_spot_alone(tmp_path: Path) -> None:
    name = "Standard_ND96isr_H100_v5"
    listing = tmp_path / "azure.csv"
    listing.write_text(
        "\ufeffarmSkuName,skuName,meterName,type,reservationTerm,unitOfMeasure,retailPrice\n"
        f"{name},ND96isr,ND96isr,Consumption,,1 Hour,$98.0\n"
        f"{name},ND96isr,ND96isr,DevTestConsumption,,1 Hour,50\n"
        f"{name},ND96isr,ND96isr,Reservation,1 Year,1 Hour,9000\n"
        f"{name},ND96isr,ND96isr,Consumption,,1 Month,70\n"
        f"{name},ND96isr Spot,ND96isr Spot,Consumption,,1 Hour,30\n"
        f"{name},ND96isr Low Priority,ND96isr,Consumption,,1 Hour,40\n",
        encoding="utf-8",
    )
    found = {price.figure: price.value for price in read_listing(listing, Hwdb.load()).prices}
    assert found == {"rent_usd_per_hour": 98.0, "spot_usd_per_hour": 30.0}


def test_an_ending_in_capitals_is_json_too(tmp_path: Path) -> None:
    (tmp_path / "feed.JSON").write_text('[{"sku": "g6e.48xlarge", "hourly_usd": "$1,030.5"}]')
    assert [price.value for price in read_listing(tmp_path / "feed.JSON", Hwdb.load()).prices] == [1030.5]


def test_prices_are_merged_by_the_names_of_columns(tmp_path: Path) -> None:
    (tmp_path / "feed.json").write_text('[{"sku": "g6e.48xlarge", "hourly_usd": 30}]')
    listing = read_listing(tmp_path / "feed.json", Hwdb.load())
    (tmp_path / "prices.csv").write_text("figure,node,value\nrent_usd_per_hour,p5.48xlarge,55\n")
    lines = write_prices(listing, tmp_path, "a feed", this_day()).read_text().splitlines()
    assert "p5.48xlarge,rent_usd_per_hour,55,,,," in lines and len(lines) == 3
    (tmp_path / "prices.csv").write_text("node,price\np5.48xlarge,55\n")
    with pytest.raises(BadInputError, match=r"prices\.csv: no column figure, value"):
        write_prices(listing, tmp_path, "a feed", this_day())
