"""Bad input: exit code 2, one message on what was given and what to do, no traceback, no output file."""

from pathlib import Path

import pytest

from tests.commands import EXPERTS, files, tangram


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model, a cluster, and files that are wrong in every way."""
    files(tmp_path)
    (tmp_path / "moe.yaml").write_text(EXPERTS)
    (tmp_path / "unknown-gpu.yaml").write_text("nodes: [{count: 1, gpu: A1000, gpus: 1, nic_gbps: 10}]\n")
    (tmp_path / "unknown-node.yaml").write_text("nodes: [{count: 1, node: p4d.48xlarge}]\n")
    (tmp_path / "unknown-key.yaml").write_text("nodes: [{cuont: 1, gpu: T4, gpus: 1, nic_gbps: 10}]\n")
    (tmp_path / "zero.yaml").write_text("nodes: [{count: 0, gpu: T4, gpus: 1, nic_gbps: 10}]\n")
    (tmp_path / "minus.yaml").write_text("nodes: [{count: 1, gpu: T4, gpus: -1, nic_gbps: 10}]\n")
    (tmp_path / "nan.yaml").write_text("nodes: [{count: 1, gpu: T4, gpus: 1, nic_gbps: .nan}]\n")
    (tmp_path / "broken.yaml").write_text("nodes:\n  - {count: 1, gpu: T4\n  - x: [\n")
    (tmp_path / "broken.json").write_text('{"model_type": "llama",\n "hidden_size": }\n')
    (tmp_path / "family.json").write_text('{"model_type": "lama", "hidden_size": 64}\n')
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "file").write_text("")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "gpus.csv").write_text("name,memory_gb\nT4,sixteen\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(*arguments: object) -> str:
    """The message of a command that must be refused; nothing may have been written beside it."""
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    finished = tangram(*arguments)
    assert finished.code == 2, (finished.out, finished.err)
    assert finished.out == ""
    assert "Traceback" not in finished.err
    assert len(finished.err) < 1500
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before
    return " ".join(finished.err.split())


PLAN = ("plan", "tiny.yaml", "lab.yaml", "-o", "out.json", "--trace", "out-trace.json")

BAD_PLANS = {
    "--dtype bf17": ("bf17", "bf16"),
    "--dtype nvfp4": ("no nvfp4 units", "T4", "A100-SXM4-40GB"),
    "--optimizer adamv": ("adamv", "adamw"),
    "--schedule 1f2b": ("1f2b", "1f1b"),
    "--objective speed": ("speed", "time", "energy", "cost"),
    "--parallelizer alpaca": ("alpaca", "grid"),
    "--preset tangram-papr": ("tangram-paper",),
    "--preset tangram-paper --microbatch-per-rank 2": ("--microbatch-per-rank 1",),
    "--global-batch 0": ("--global-batch 0",),
    "--global-batch -4": ("--global-batch -4",),
    "--global-batch 99999999999": ("--global-batch", "1048576"),
    "--seq 0": ("--seq 0",),
    "--seq -1": ("--seq -1",),
    "--seq long": ("--seq long", "integer"),
    "--seq nan": ("--seq nan", "integer"),
    "--top 0": ("--top 0",),
    "--planner metis --fix tp=2 --whole-islands --for any": ("metis", "--whole-islands, --for, --fix;"),
    "--planner metis --losses 2": ("metis does not know --losses;",),
    "--losses 0.1 --fix tp=2 --for any --top 3": ("does not know --for, --fix;",),
    "--top -2": ("--top -2",),
    "--recompute some": ("some", "selective"),
    "--order g7": ("g7", "g0", "tangram islands"),
    "--order g0,g0": ("twice",),
    "--order ,": ("--order",),
    "--exclude g7": ("g7", "g1"),
    "--exclude g0,g1": ("no island", "g0", "g1"),
    "--order g0 --exclude g0": ("--order and --exclude", "g0"),
    "--fix tp": ("NAME=NUMBER",),
    "--fix tq=2": ("tq", "tp"),
    "--fix tp=0": ("1 or more",),
    "--fix zero=4": ("0 to 3",),
    "--fix tp=2 --fix tp=4": ("two values",),
    "--fix tp=3": ("8 attention heads", "1, 2, 4, 8"),
    "--fix cp=3": ("2048 tokens",),
    "--fix cp=3 --seq 6144": ("whole nodes", "multiple of 3"),
    "--fix tp=8 --exclude g0": ("8 GPUs", "largest island g1 has 4"),
    "--fix ep=2": ("no experts",),
    "--fix pp=3": ("multiple of 3",),
    "--fix dp=8 --global-batch 4": ("dp=8", "global batch of 4"),
    "--fix dp=1,cp=1,zero=1": ("no replicas",),
    "--fix tp=4,dp=2,cp=2,pp=1": ("16 GPUs",),
    "--microbatch-per-rank 0": ("1 or more",),
    "--microbatch-per-rank 256": ("256", "global batch of 128"),
    "--microbatch-per-rank 3 --fix dp=1": ("divisor of the global batch of 128", "exactly 3", "2 and 4"),
    "--recompute selective --exclude g0": ("fused attention",),
    "--candidates out.json": ("one file",),
    "-o r.pdf": (".pdf", ".html"),
}


@pytest.mark.parametrize("options", BAD_PLANS)
def test_impossible_wishes(folder: Path, options: str) -> None:
    message = refused(*PLAN, *options.split())
    assert all(word in message for word in BAD_PLANS[options]), message


def test_expert_parallelism_must_divide_the_experts(folder: Path) -> None:
    message = refused("plan", "moe.yaml", "lab.yaml", "--fix", "ep=3")
    assert "8 experts" in message
    assert "1, 2, 4, 8" in message


BAD_FILES = {
    ("plan", "gpt3-6.8b", "lab.yaml"): ("gpt3-6.8b", "gpt3-6.7b", "config.json"),
    ("plan", "tiny.yaml", "azure-c9"): ("azure-c9", "azure-c1"),
    ("plan", "missing.json", "lab.yaml"): ("missing.json", "no such file"),
    ("plan", "broken.json", "lab.yaml"): ("broken.json", "line 2"),
    ("plan", "family.json", "lab.yaml"): ("lama", "llama"),
    ("plan", "tiny.yaml", "missing.yaml"): ("missing.yaml",),
    ("plan", "tiny.yaml", "broken.yaml"): ("broken.yaml", "line 3"),
    ("plan", "tiny.yaml", "binary.yaml"): ("binary.yaml", "not a text file"),
    ("plan", "tiny.yaml", "unknown-gpu.yaml"): ("A1000", "A100", "nodes[0].gpu"),
    ("plan", "tiny.yaml", "unknown-node.yaml"): ("p4d.48xlarge", "p4d.24xlarge"),
    ("plan", "tiny.yaml", "unknown-key.yaml"): ("cuont", "count"),
    ("plan", "tiny.yaml", "zero.yaml"): ("count", "0"),
    ("plan", "tiny.yaml", "minus.yaml"): ("gpus", "-1"),
    ("plan", "tiny.yaml", "nan.yaml"): ("nic_gbps", "finite"),
    ("plan", "tiny.yaml", "lab.yaml", "--hwdb", "nowhere"): ("nowhere", "no such folder"),
    ("plan", "tiny.yaml", "lab.yaml", "--hwdb", "own"): ("own/gpus.csv", "line 2", "sixteen"),
    ("plan", "tiny.yaml", "lab.yaml", "-o", "."): ("--output .", "folder"),
    ("plan", "tiny.yaml", "lab.yaml", "--trace", "file/t.json"): ("not a folder",),
    ("plan", "tiny.yaml", "lab.yaml", "--candidates", "own"): ("--candidates own", "folder"),
    ("plan", "tiny.yaml", "lab.yaml", "-o", "x.json", "--trace", "x.json"): ("one file",),
    ("plan", "tiny.yaml", "lab.yaml", "-o", "/proc/none/x.json"): ("cannot be written",),
    ("simulate", "missing.json"): ("missing.json", "No such file"),
    ("simulate", "lab.yaml"): ("lab.yaml", "not JSON"),
    ("simulate", "."): ("cannot be read",),
    ("simulate", "missing.json", "--engine", "quick"): ("quick", "fast", "reference"),
    ("explain", "family.json"): ("not a plan file", "tangram plan"),
    ("islands", "azure-c0"): ("azure-c0", "azure-c1"),
    ("islands", "lab.yaml", "--dtype", "int4"): ("int4", "bf16"),
    ("islands", "lab.yaml", "--compute-tolerance", "nan"): ("--compute-tolerance nan",),
    ("islands", "lab.yaml", "--memory-tolerance", "-0.1"): ("--memory-tolerance -0.1",),
    ("models", "show", "lama"): ("lama", "llama"),
    ("hw", "show", "A1000"): ("A1000", "A100", "tangram hw list"),
}


@pytest.mark.parametrize("arguments", BAD_FILES, ids=" ".join)
def test_unknown_names_and_malformed_files(folder: Path, arguments: tuple[str, ...]) -> None:
    message = refused(*arguments)
    assert all(word in message for word in BAD_FILES[arguments]), message
    assert message.startswith("error: ")


ESTIMATE = ("estimate", "tiny.yaml", "lab.yaml", "--dtype", "fp16")

BAD_ESTIMATES = {
    "": ("dp 12", "--dp"),
    "--tp 3": ("8 attention heads", "1, 2, 4, 8"),
    "--tp 16": ("16 GPUs", "lab has 12"),
    "--tp 4 --pp 2 --dp 2": ("16 GPUs", "lab has 12"),
    "--tp 4 --pp 4 --order g1": ("16 GPUs", "lab has 4 in g1"),
    "--tp 0": ("--tp 0",),
    "--dp -1": ("--dp -1",),
    "--zero 4": ("--zero 4",),
    "--micro-batch 0": ("--micro-batch 0",),
    "--dp 4 --micro-batch 64": ("256", "global batch of 128"),
    "--dp 3": ("not a multiple",),
    "--cp 3": ("2048 tokens",),
    "--dp 4 --ep 2": ("--ep 2", "no experts", "give 1"),
    "--dp 4 --recompute most": ("most", "full"),
    "--dp 2 --vpp 2": ("--pp 2",),
    "--pp 2 --dp 4 --vpp 2 --schedule gpipe": ("--schedule interleaved",),
    "--pp 2 --dp 4 --schedule interleaved": ("--vpp 2",),
    "--pp 3 --dp 4 --vpp 2 --global-batch 96": ("6 places", "4 layers"),
    "--pp 2 --dp 2 --vpp 2 --micro-batch 64": ("multiples of --pp 2",),
    "--pp 2 --dp 2 --layers 1,2": ("add up to the 4 layers",),
    "--pp 2 --dp 2 --layers 1,2,1": ("needs 2 numbers",),
    "--pp 2 --dp 2 --layers 2,x": ("whole numbers",),
    "--pp 3 --dp 4 --layers 2,0,2": ("hold nothing",),
    "--dp 4 --order g3": ("g3", "g0"),
    "--dp 4 --order g0,g0": ("twice",),
    "--tp 4 --sequence-parallel --seq 2049 --dp 1": ("--sequence-parallel", "2049 tokens"),
    "--dp 4 --dtype bf16": ("T4", "no bf16 units", "fp16"),
}


@pytest.mark.parametrize("options", BAD_ESTIMATES)
def test_layouts_that_cannot_be(folder: Path, options: str) -> None:
    message = refused(*ESTIMATE, "-o", "out.json", *options.split())
    assert all(word in message for word in BAD_ESTIMATES[options]), message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plan",), ("Missing argument", "MODEL")),
        (("plan", "tiny.yaml"), ("Missing argument", "CLUSTER")),
        ((*PLAN, "--bogus"), ("No such option", "--bogus")),
        (("forecast",), ("No such command", "forecast")),
        (("hw", "display"), ("No such command", "display")),
    ],
)
def test_usage_errors_are_short_and_name_the_word(
    folder: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    message = refused(*arguments)
    assert all(word in message for word in words), message
    assert "--help" in message


@pytest.mark.slow
def test_a_model_too_large_says_what_it_needs_what_there_is_and_what_was_tried(folder: Path) -> None:
    message = refused("plan", "gpt3-175b", "lab.yaml")
    for word in (
        "gpt3-175b",
        "lab",
        "bytes per parameter",
        "GiB",
        "ZeRO 0-3",
        "recompute none/selective/full",
    ):
        assert word in message


def test_an_explicit_dtype_leaves_out_islands_by_name(folder: Path) -> None:
    finished = tangram("plan", "tiny.yaml", "lab.yaml", "--dtype", "bf16", "--json", "--global-batch", 16)
    assert finished.code == 0
    assert {stage["gpu"] for stage in finished.json["stages"]} == {"A100-SXM4-40GB"}
    assert any("g0" in note and "T4" in note and "bf16" in note for note in finished.json["notes"])


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ("", "bf16"),  # the T4s are left idle: nothing asks for fp16
        ("--exclude g0", "bf16"),
        ("--order g1", "bf16"),
        ("--exclude g1", "fp16"),
        ("--order g1,g0", "bf16"),  # it leaves the T4s idle as well: fp16 would beat the free search
    ],
)
def test_automatic_dtype_looks_at_the_islands_that_could_be_used(
    folder: Path, options: str, dtype: str
) -> None:
    found = tangram("plan", "tiny.yaml", "lab.yaml", "--json", "--global-batch", 16, *options.split()).json
    assert found["job"]["dtype"] == dtype


def test_a_merged_island_is_excluded_by_the_names_of_its_groups(folder: Path) -> None:
    """T4 and V100 have no bf16 units: one island without compute, known to the user as g0 and g1."""
    nodes = [
        f"  - {{count: 1, gpu: {gpu}, gpus: 2, intra_link: PCIe3x16, nic_gbps: 25}}\n" for gpu in ("T4", "T4")
    ]
    Path("two.yaml").write_text(f"nodes:\n{''.join(nodes)}")
    assert [i["name"] for i in tangram("islands", "two.yaml", "--json").json["islands"]] == ["g0+g1"]
    assert "no island" in refused("plan", "tiny.yaml", "two.yaml", "--exclude", "g0,g1")
    assert "g0+g1" in refused("plan", "tiny.yaml", "two.yaml", "--exclude", "g0")
