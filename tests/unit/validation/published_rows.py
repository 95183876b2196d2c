"""A published run as a row of the table."""

from tangram_validate.published.predict import Prediction, predict_rows

from tangram_sim.hwdb import Hwdb

HWDB = Hwdb.load()

# A GPT of 22 billion parameters on one node of A100; every cell that matters is stated.
ROW = {
    "id": "a-1",
    "source_id": "paper",
    "source": "a paper",
    "table": "5",
    "date": "2022-05",
    "gpu": "A100-80GB",
    "gpus_per_node": "8",
    "nodes": "1",
    "gpus": "8",
    "intra_link": "NVLink3/NVSwitch",
    "inter_link": "",
    "framework": "Megatron-LM",
    "task": "pretrain",
    "model": "megatron-22b",
    "layers": "48",
    "hidden": "6144",
    "heads": "64",
    "kv_heads": "64",
    "ffn": "24576",
    "ffn_kind": "plain",
    "vocab": "51200",
    "seq_len": "2048",
    "experts": "",
    "topk": "",
    "moe_ffn": "",
    "dtype": "fp16",
    "tp": "8",
    "pp": "1",
    "vpp": "1",
    "dp": "1",
    "cp": "1",
    "ep": "1",
    "etp": "",
    "sharding": "none",
    "seq_parallel": "yes",
    "mbs": "4",
    "gbs": "4",
    "grad_accum": "1",
    "recompute": "selective",
    "schedule": "1F1B",
    "iter_time_s": "1.1",
    "iter_time_s_derived": "",
    "peak_mem_gb": "",
    "mem_kind": "",
    "tier": "A",
}


def row(**cells: str) -> dict[str, str]:
    return {**ROW, **cells}


def predicted(**cells: str) -> Prediction:
    (found,) = predict_rows([row(**cells)], HWDB)
    assert isinstance(found, Prediction), found
    return found
