"""A service's plan as launch files: what they start is the plan, and what they cannot say is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tangram_sim.errors import TangramError
from tangram_sim.export.service import kubernetes, launch_script, router_weights
from tangram_sim.export.service.formats import FORMATS, export_service
from tangram_sim.export.service.groups import ServiceLaunch, service_of
from tangram_sim.hwdb import Hwdb
from tests.commands import tangram

FLEET: dict[str, Any] = {
    "model": "llama3-70b",
    "engine": "vllm",
    "precision": "fp8",
    "types": [[800, 200], [300, 40]],
    "replicas": [
        {
            "name": "two stages",
            "count": 3,
            "stages": [
                {"gpu": "H100-SXM5-80GB", "tp": 2, "layers": 50},
                {"gpu": "H100-SXM5-80GB", "tp": 2, "layers": 30},
            ],
            "shares": [0.25, 1.0],
        },
        {"name": "A100 tp4", "gpu": "A100-SXM4-80GB", "tp": 4, "pp": 2, "shares": [0.75, 0.0]},
    ],
}


def service(change: dict[str, Any] | None = None, engine: str = "") -> ServiceLaunch:
    return service_of({**FLEET, **(change or {})}, Hwdb.load(()), engine)


EVEN = {"replicas": FLEET["replicas"][1:]}


@pytest.mark.parametrize("to", FORMATS)
def test_files_read_back_as_the_plan(to: str) -> None:
    change = EVEN if to == "trtllm" else None  # which cuts evenly only
    given = service(change, "" if to == "kubernetes" else to)
    found = export_service(given, to, {"llama3-70b": "org/Llama 70B"})
    assert found.files.keys() == {"router.json", "kubernetes.yaml" if to == "kubernetes" else "launch.sh"}
    if to == "kubernetes":
        assert kubernetes.read(found.files["kubernetes.yaml"], "vllm") == given.groups
    else:
        assert launch_script.read(found.files["launch.sh"], to, given.groups) == given.groups
    assert router_weights.read(found.files["router.json"]) == (given.shares, given.types)


def test_gpus_without_bf16_are_started_in_fp16() -> None:
    """Engines end at once where bf16 is asked of a V100."""
    replicas = [{"gpu": gpu, "tp": 4} for gpu in ("V100-SXM2-32GB", "A100-SXM4-80GB")]
    given = service({"precision": "bf16", "replicas": replicas, "types": []})
    assert [group.precision for group in given.groups] == ["fp16", "bf16"]
    files = export_service(given, "vllm", {"llama3-70b": "org/Llama 70B"}).files
    found = export_service(given, "vllm", {"llama3-70b": "org/Llama 70B"})
    assert any("started in fp16: V100-SXM2-32GB cannot compute in bf16" in note for note in found.notes)
    assert files["launch.sh"].count("--dtype float16") == files["launch.sh"].count("--dtype bfloat16") == 1


@pytest.mark.parametrize(
    ("to", "flag"),
    [("vllm", "--enable-expert-parallel "), ("sglang", "--ep-size 4 "), ("trtllm", "--ep_size 4 ")],
)
def test_experts_are_spread_over_the_ranks_of_a_stage(to: str, flag: str) -> None:
    replica = {"name": "moe", "model": "mixtral-8x7b", "gpu": "H100-SXM5-80GB", "tp": 4, "ep": 4}
    given = service({"model": "mixtral-8x7b", "replicas": [replica]}, to)
    text = export_service(given, to, {}).files["launch.sh"]
    assert flag in text
    assert launch_script.read(text, to, given.groups) == given.groups


@pytest.mark.parametrize(
    ("to", "flags"),
    [
        (
            "vllm",
            "--tensor-parallel-size 2 --pipeline-parallel-size 1 --data-parallel-size 4 --max-num-seqs 32",
        ),
        ("sglang", "--tp-size 8 --pp-size 1 --enable-dp-attention --dp-size 4 --max-running-requests 128"),
    ],
)
def test_groups_of_attention_are_started_and_read_back(to: str, flags: str) -> None:
    """SGLang is told degree and seats of all groups together, vLLM those of one."""
    replica = {"name": "moe", "gpu": "H100-SXM5-80GB", "tp": 2, "attention_dp": 4, "max_sequences": 128}
    for ep in (1, 8):
        given = service({"model": "mixtral-8x7b", "replicas": [{**replica, "ep": ep}]}, to)
        assert given.groups[0].gpus == 8 and given.groups[0].expert_parallel == (ep > 1)
        text = export_service(given, to, {}).files["launch.sh"]
        assert flags in text and ("expert-parallel" in text or "--ep-size 8" in text) == (ep > 1)
        assert launch_script.read(text, to, given.groups) == given.groups
        if to == "vllm":
            pods = export_service(given, "kubernetes", {}).files["kubernetes.yaml"]
            assert kubernetes.read(pods, to) == given.groups


PHASES = {
    "link_gb_per_s": 50.0,
    "replicas": [
        {"name": "p", "gpu": "H100-SXM5-80GB", "tp": 4, "role": "prefill", "count": 2, "shares": [1.0, 0.5]},
        {"name": "q", "gpu": "L40S", "tp": 8, "role": "prefill", "shares": [0.0, 0.5]},
        {"name": "d", "gpu": "A100-SXM4-80GB", "tp": 4, "role": "decode", "shares": [1.0, 1.0]},
    ],
}


@pytest.mark.parametrize(
    ("to", "flags"),
    [
        ("vllm", ('"kv_role":"kv_producer"', '"kv_role":"kv_consumer"')),
        ("sglang", ("--disaggregation-mode prefill", "--disaggregation-mode decode")),
        ("trtllm", ("--server_role CONTEXT", "--server_role GENERATION")),
        ("kubernetes", ("kv_producer", "kv_consumer")),
    ],
)
def test_prefill_and_decode_start_apart_and_read_back(to: str, flags: tuple[str, str]) -> None:
    given = service(PHASES, "" if to == "kubernetes" else to)
    found = export_service(given, to, {"llama3-70b": "org/Llama 70B"})
    (text,) = (text for name, text in found.files.items() if name != router_weights.FILE)
    assert (text.count(flags[0]), text.count(flags[1])) == (2, 1)
    if to == "kubernetes":
        assert kubernetes.read(text, "vllm") == given.groups
    else:
        assert launch_script.read(text, to, given.groups) == given.groups
    assert [item.get("role") for item in json.loads(found.files["router.json"])["groups"]] == [
        "prefill",
        "prefill",
        "decode",
    ]
    assert sum("need in front of them" in note for note in found.notes) == 1


def test_a_manifest_asks_for_the_plan_s_gpus() -> None:
    text = export_service(service(), "kubernetes", {}).files["kubernetes.yaml"]
    first, second = (item for item in yaml.safe_load_all(text) if item["kind"] == "Deployment")
    assert [item["metadata"]["name"] for item in (first, second)] == ["g0-two-stages", "g1-a100-tp4"]
    pod = first["spec"]["template"]["spec"]
    assert first["spec"]["replicas"] == 3
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert pod["containers"][0]["env"] == [{"name": "VLLM_PP_LAYER_PARTITION", "value": "50,30"}]
    assert second["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8}


def test_a_changed_file_is_another_plan() -> None:
    text = export_service(service(), "vllm", {}).files["launch.sh"]
    assert (
        launch_script.read(text.replace("--max-num-seqs 1024", "--max-num-seqs 8"), "vllm", service().groups)
        != service().groups
    )
    with pytest.raises(TangramError, match="the command starts 2 stages of tp 4"):
        other = text.replace("--tensor-parallel-size 2", "--tensor-parallel-size 4")
        launch_script.read(other, "vllm", service().groups)


UNEQUAL = [{"gpu": "A100-SXM4-80GB", "tp": 4, "layers": 60}, {"gpu": "L40S", "tp": 2, "layers": 20}]
TWO_KINDS = [{"gpu": "A100-SXM4-80GB", "tp": 2, "layers": 60}, {"gpu": "L40S", "tp": 2, "layers": 20}]


@pytest.mark.parametrize(
    ("to", "replica", "words"),
    [
        ("vllm", {"stages": UNEQUAL}, "tensor-parallel degrees 2, 4"),
        ("kubernetes", {"stages": TWO_KINDS}, "pods of a Deployment are"),
        ("trtllm", {"stages": TWO_KINDS}, "cuts evenly"),
        ("trtllm", {"gpu": "L40S", "tp": 4, "drafts": 3}, "draft tokens, which trtllm-serve takes"),
        ("sglang", {"gpu": "L40S", "tp": 2, "attention_dp": 2, "drafts": 3}, "does not look up"),
        ("vllm", {"gpu": "L40S", "tp": 2, "pp": 2, "drafts": 3}, "draft tokens, which engines do not check"),
        ("sglang", {"gpu": "L40S", "tp": 4, "ep": 2}, "experts over 2 of 4 ranks"),
        ("trtllm", {"gpu": "L40S", "tp": 2, "attention_dp": 2}, "enable_attention_dp"),
        ("vllm", {"gpu": "L40S", "tp": 2, "pp": 2, "attention_dp": 2}, "in several stages"),
        ("vllm", {"costs": {"step_s": 0.01, "kv_blocks": 100}}, "costs of its own"),
        ("helm", {"gpu": "L40S", "tp": 4}, "unknown format"),
    ],
)
def test_what_a_format_cannot_say_is_refused(to: str, replica: dict[str, Any], words: str) -> None:
    with pytest.raises(TangramError, match=words):
        engine = to if to in ("sglang", "trtllm") else ""
        export_service(service({"replicas": [{"name": "r", **replica}]}, engine), to, {})


def test_the_verb_writes_files_and_says_what_is_missing(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.json"
    fleet.write_text(json.dumps(FLEET))
    told = tangram("serve", "export", fleet, "--json").json
    assert told["to"] == "vllm"
    assert "weights are those of meta-llama/Llama-3.1-70B on the hub" in told["notes"][-1]
    shown = tangram("serve", "export", fleet, "--to", "sglang", "-o", tmp_path / "out")
    assert shown.code == 0
    assert "planned for vllm" in shown.out
    assert (tmp_path / "out" / "launch.sh").exists()
    for options, words in ((("--weights", "x=y"), "unknown model"), (("--weights", "x"), "give it like")):
        refused = tangram("serve", "export", fleet, *options)
        assert (refused.code, words in refused.err) == (2, True)


def test_limits_are_those_of_the_plan_and_not_the_engines_own() -> None:
    """Seats that keep the objective, the longest request, a name on the hub in place of our own."""
    replica = {"gpu": "H100-SXM5-80GB", "tp": 4, "planned_sequences": 37, "shares": [1.0, 1.0]}
    given = service({"replicas": [replica], "types": [[3000, 500], [300, 40]]})
    found = export_service(given, "vllm", {})
    text = found.files["launch.sh"]
    assert "--max-num-seqs 37 " in text
    assert "--max-model-len 7168 " in text  # twice 3,500, in thousands of 1,024
    assert "meta-llama/Llama-3.1-70B" in text
    assert any("longer than 7168 tokens" in note for note in found.notes)
    assert launch_script.read(text, "vllm", given.groups) == given.groups
    smaller = service({"replicas": [replica | {"max_sequences": 8}], "types": []})
    assert [(group.seats, group.context_tokens) for group in smaller.groups] == [(8, 0)]


def test_limits_of_several_models_are_told_one_by_one() -> None:
    replica = {"gpu": "H100-SXM5-80GB", "tp": 4}
    models = {"llama3-70b": [3000, 500, "llama3-70b"], "qwen2.5-7b": [300, 40, "qwen2.5-7b"]}
    replicas = [replica | {"name": name, "model": name} for name in models]
    given = service({"replicas": replicas, "types": [*models.values()]})
    notes = export_service(given, "vllm", {}).notes
    assert any("longer than 7168 tokens (llama3-70b), 1024 tokens (qwen2.5-7b) are" in note for note in notes)


def test_weights_that_are_given_are_not_guessed() -> None:
    for weights, said in (({}, True), ({"llama3-70b": "/checkpoints/mine"}, False)):
        notes = export_service(service(), "vllm", weights).notes
        assert any("on the hub" in note for note in notes) == said


def test_gpus_without_fp8_get_no_fp8_cache() -> None:
    given = service()  # weights in fp8, on H100 and A100
    assert [group.kv_precision for group in given.groups] == ["auto", "bf16"]
    found = export_service(given, "vllm", {})
    assert found.files["launch.sh"].count("--kv-cache-dtype fp8") == 1
    assert any("A100-SXM4-80GB would serve an fp8 cache" in note for note in found.notes)
    with pytest.raises(TangramError, match=r"KV cache in fp8 on A100-SXM4-80GB.*16 bits"):
        service({"kv_precision": "fp8"})


@pytest.mark.parametrize(
    ("to", "flags"),
    [
        (
            "vllm",
            """--speculative-config '{"method":"ngram","num_speculative_tokens":10,"prompt_lookup_max":4,"""
            """"prompt_lookup_min":1}'""",
        ),
        (
            "sglang",
            "--speculative-algorithm NGRAM --speculative-num-draft-tokens 11 "
            "--speculative-ngram-max-bfs-breadth 1",
        ),
    ],
)
def test_drafts_are_flags_which_the_exporter_reads_back(to: str, flags: str) -> None:
    """Ten drafts are not read as one: the file is refused where it reads back as another plan."""
    replica = {"name": "r", "gpu": "H100-SXM5-80GB", "tp": 2, "drafts": 10, "acceptance": 0.8}
    found = export_service(service({"replicas": [replica]}, to), to, {})
    assert flags in found.files["launch.sh"]
    assert any("drafts are looked up" in note and "a chain of 10" in note for note in found.notes)
