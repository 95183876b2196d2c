"""The curated tables obey their schema, name only each other's rows, and do not contradict physics."""

import csv
import datetime
import re
from pathlib import Path

import pytest

from tests.unit.hwdb.tables import CLUSTERS, HWDB, KEYS, NAMES, ROWS, TABLES, cells, row_of, table

LINK_KINDS = {"nvlink", "nvlink-bridge", "xgmi", "pcie", "network", "none", "other"}

PEAKS = ["fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8"]

EFFICIENCY = sorted((HWDB / "efficiency").glob("*.csv"))

COLLECTIVES = sorted((HWDB / "collectives").glob("*.csv"))

SCHEMA = ROWS["schema"]


def number(text: str) -> float | None:
    return float(text) if text else None


def every_file() -> list[tuple[str, Path]]:
    return (
        [(name, HWDB / f"{name}.csv") for name in TABLES]
        + [("efficiency", path) for path in EFFICIENCY]
        + [("collectives", path) for path in COLLECTIVES]
        + [(f"serving_{path.stem}", path) for path in sorted((HWDB / "serving").glob("*.csv"))]
    )


@pytest.mark.parametrize(("name", "path"), every_file(), ids=lambda value: Path(value).stem)
def test_columns_are_those_of_the_schema_in_its_order(name: str, path: Path) -> None:
    expected = list(SCHEMA[SCHEMA["table"] == name]["column"])
    with path.open(newline="", encoding="utf-8") as stream:
        assert next(csv.reader(stream)) == expected


def test_schema_describes_known_tables_once() -> None:
    assert set(SCHEMA["table"]) == {
        *TABLES,
        "efficiency",
        "collectives",
        "serving_engines",
        "serving_calibration",
        "post_training_overheads",
    }
    assert not SCHEMA.duplicated(["table", "column"]).any()
    assert set(SCHEMA["type"]) <= {"text", "integer", "number", "date"}
    assert set(SCHEMA["required"]) <= {"yes", "no"}


@pytest.mark.parametrize(("name", "path"), every_file(), ids=lambda value: Path(value).stem)
def test_cells_have_the_type_and_presence_the_schema_says(name: str, path: Path) -> None:
    rows = table(path)
    for rule in SCHEMA[SCHEMA["table"] == name].to_dict("records"):
        for line, cell in enumerate(rows[rule["column"]], start=2):
            where = f"{path.name}, line {line}, {rule['column']}: {cell!r}"
            assert cell == cell.strip(), where
            if not cell:
                assert rule["required"] == "no", f"{where} is required"
            elif rule["type"] == "integer":
                assert re.fullmatch(r"\d+", cell), where
            elif rule["type"] == "number":
                assert re.fullmatch(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", cell), where
            elif rule["type"] == "date":
                assert datetime.date.fromisoformat(cell) <= datetime.date(2100, 1, 1), where


@pytest.mark.parametrize("name", ["gpus", "links", "nodes"])
def test_names_are_unique_and_every_row_has_a_source(name: str) -> None:
    rows = ROWS[name]
    assert not rows["name"].str.lower().duplicated().any()
    for row in cells(name):
        assert len(row["source"]) > 5, row["name"]
        assert "[memory]" not in row["source"] + row["note"], row["name"]


def test_no_table_is_a_stub() -> None:
    assert len(ROWS["gpus"]) >= 60
    assert len(ROWS["nodes"]) >= 75
    assert len(CLUSTERS) >= 30


def folded(name: str) -> str:
    return re.sub(r"[-_/ ]", "", name.lower())


def test_aliases_point_at_rows_and_shadow_no_name() -> None:
    """Nor may a reader that ignores case and separators find two meanings."""
    assert {row["kind"] for row in cells("aliases")} == set(KEYS)
    for kind, names in NAMES.items():
        meaning = {folded(name): name for name in names}
        assert len(meaning) == len(names)
        given: set[str] = set()
        for row in cells("aliases"):
            if row["kind"] != kind:
                continue
            alias, name = row["alias"], row["name"]
            assert name in names, f"{kind} alias {alias} points at {name}, which has no row"
            assert alias not in names, f"{kind} alias {alias} shadows a canonical name"
            assert alias not in given, f"{kind} alias {alias} is given twice"
            given.add(alias)
            assert meaning.setdefault(folded(alias), name) == name, f"{kind} alias {alias} is ambiguous"


def test_gpus_links_and_nodes_name_existing_rows() -> None:
    kinds = dict(zip(ROWS["links"]["name"], ROWS["links"]["kind"], strict=True))
    for gpu in cells("gpus"):
        assert gpu["link"] in kinds, gpu["name"]
        assert kinds[gpu["link"]] != "network", gpu["name"]
    for node in cells("nodes"):
        assert node["gpu"] in NAMES["gpu"], node["name"]
        assert node["intra_link"] in kinds, node["name"]
        assert not node["nic"] or kinds.get(node["nic"]) == "network", node["name"]


def test_bridged_nodes_have_a_bridge_and_pcie_across() -> None:
    link_of = dict(zip(ROWS["gpus"]["name"], ROWS["gpus"]["link"], strict=True))
    kinds = dict(zip(ROWS["links"]["name"], ROWS["links"]["kind"], strict=True))
    assert (ROWS["nodes"]["bridged_pairs"] == "yes").any()
    for node in cells("nodes"):
        assert node["bridged_pairs"] in ("", "yes"), node["name"]
        if node["bridged_pairs"]:
            assert kinds[node["intra_link"]] == "pcie", node["name"]
            assert kinds[link_of[node["gpu"]]] == "nvlink-bridge", node["name"]
            assert int(node["gpus"]) % 2 == 0, node["name"]


def test_one_gpu_needs_no_link_and_several_need_one() -> None:
    for node in cells("nodes"):
        assert (node["intra_link"] == "none") == (int(node["gpus"]) == 1), node["name"]


def test_links_have_known_kinds_and_the_classes_others_count_on() -> None:
    assert set(ROWS["links"]["kind"]) == LINK_KINDS
    needed = [f"NVLink{generation}" for generation in range(1, 6)]
    needed += ["NVLink-bridge", "NVLink3-bridge", "NVLink4-bridge", "PCIe-SHM", "none"]
    needed += [f"PCIe{generation}x{lanes}" for generation in (3, 4, 5) for lanes in (8, 16)]
    assert set(needed) <= NAMES["link"]


def test_fp16_peak_is_units_times_flop_per_clock_times_clock() -> None:
    """Catches sparse, vector and fp16-accumulate peaks: errors of two to four times."""
    checked = 0
    for gpu in cells("gpus"):
        parts = [number(gpu[c]) for c in ("units", "flop_per_clock_per_unit", "clock_mhz", "fp16_tflops")]
        if None in parts:
            continue
        units, flop, clock, peak = (part for part in parts if part is not None)
        ratio = peak / (units * flop * clock / 1e6)
        checked += 1
        assert 0.8 < ratio < 1.01, f"{gpu['name']}: {ratio:.3f}"
        assert abs(ratio - 1) <= 0.01 or gpu["note"], f"{gpu['name']}: {ratio:.3f} and no note that says why"
    assert checked >= 40


def test_narrower_types_are_not_slower() -> None:
    for gpu in cells("gpus"):
        peaks = {dtype: number(gpu[f"{dtype}_tflops"]) for dtype in PEAKS}
        assert any(peaks.values()), f"{gpu['name']} has no peak at all"
        known = [peak for dtype in ("tf32", "fp16", "fp8", "fp4") if (peak := peaks[dtype]) is not None]
        assert known == sorted(known), gpu["name"]
        for peak in peaks.values():
            assert peak is None or 1 < peak < 50_000, gpu["name"]
        if peaks["fp16"] and peaks["bf16"]:
            assert peaks["bf16"] in (peaks["fp16"], peaks["fp16"] / 2), gpu["name"]


@pytest.mark.parametrize(
    ("architecture", "column"),
    [
        ("Pascal", "bf16"),
        ("Volta", "bf16"),
        ("Turing", "bf16"),
        ("Turing", "tf32"),
        ("Ampere", "fp8"),
        ("Hopper", "fp4"),
    ],
)
def test_generations_do_not_have_units_they_lack(architecture: str, column: str) -> None:
    rows = ROWS["gpus"][ROWS["gpus"]["architecture"] == architecture]
    assert len(rows)
    assert set(rows[f"{column}_tflops"]) == {""}


def test_geforce_cards_carry_the_fp32_accumulate_rate() -> None:
    """Half the usually printed figure; with the full rate every plan would favour them twofold."""
    for name in ("RTX-2080", "RTX-2080Ti", "RTX-3090", "RTX-4090", "RTX-5090"):
        assert row_of("gpus", name)["flop_per_clock_per_unit"] == "512", name


def test_gpu_link_bandwidth_is_that_of_its_class_one_direction() -> None:
    rate = {row["name"]: float(row["gb_per_s"]) for row in cells("links")}
    for gpu in cells("gpus"):
        own, expected = float(gpu["link_gb_per_s"]), rate[gpu["link"]]
        assert own == pytest.approx(expected, rel=0.01), f"{gpu['name']}: {own} against {expected}"


@pytest.mark.parametrize(
    ("link", "both_directions"),
    [
        ("NVLink1", 160),
        ("NVLink2", 300),
        ("NVLink3", 600),
        ("NVLink4", 900),
        ("NVLink5", 1800),
        ("PCIe4x16", 63),
    ],
)
def test_rates_are_half_of_what_vendors_print(link: str, both_directions: float) -> None:
    rate = {row["name"]: float(row["gb_per_s"]) for row in cells("links")}
    assert 2 * rate[link] == pytest.approx(both_directions, rel=0.01)


def test_link_rates_and_latencies_are_plausible() -> None:
    for link in cells("links"):
        rate, latency = float(link["gb_per_s"]), float(link["latency_us"])
        if link["kind"] == "none":
            assert rate == latency == 0
            continue
        assert 0.01 < rate < 2000, link["name"]
        assert 0.5 <= latency <= 200, link["name"]


def test_capped_variants_differ_only_where_they_are_capped() -> None:
    for capped, full in (("A800-SXM4-80GB", "A100-SXM4-80GB"), ("H800-SXM5-80GB", "H100-SXM5-80GB")):
        for column in ("fp16_tflops", "memory_gb", "memory_gb_per_s", "power_w"):
            assert row_of("gpus", capped)[column] == row_of("gpus", full)[column], (capped, column)
        assert float(row_of("gpus", capped)["link_gb_per_s"]) == 200


def test_memory_and_power_are_plausible() -> None:
    for gpu in cells("gpus"):
        assert 8 <= float(gpu["memory_gb"]) <= 512, gpu["name"]
        assert 200 <= float(gpu["memory_gb_per_s"]) <= 20_000, gpu["name"]
        assert not gpu["power_w"] or 50 <= float(gpu["power_w"]) <= 2000, gpu["name"]
        assert 2015 <= int(gpu["year"]) <= 2030, gpu["name"]


def test_nics_of_a_node_can_carry_its_rate() -> None:
    port = {row["name"]: float(row["gb_per_s"]) * 8 for row in cells("links")}
    for node in cells("nodes"):
        if node["nic"] and node["nics"]:
            assert float(node["nic_gbps"]) <= int(node["nics"]) * port[node["nic"]] * 1.01, node["name"]


def test_a_node_draws_at_least_what_its_gpus_draw() -> None:
    power = {row["name"]: number(row["power_w"]) for row in cells("gpus")}
    for node in cells("nodes"):
        gpu_w = power[node["gpu"]]
        if node["power_kw"] and gpu_w:
            assert float(node["power_kw"]) * 1000 >= int(node["gpus"]) * gpu_w, node["name"]


def test_a_price_has_a_region_a_date_and_a_source() -> None:
    """Published prices of one instance differ twofold by month: an undated price is worse than none."""
    assert (ROWS["nodes"]["usd_per_hour"] != "").sum() >= 15
    for node in cells("nodes"):
        parts = [node[column] for column in ("usd_per_hour", "price_region", "price_date", "price_source")]
        assert all(parts) or not any(parts), node["name"]
