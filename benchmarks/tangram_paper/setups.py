"""What the paper ran: bar groups of Figs. 8 to 11, and the clusters of the planning times of Figs. 12 and 13.

Source: the paper and its authors' public forks of Galvatron and Sailor; see docs/how-to/tangram-paper.md.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setup:
    """One bar group: a model on a cluster, and the systems that are compared there."""

    figure: str
    model: str  # of hwdb/models
    cluster: str  # of hwdb/clusters
    seq: int
    systems: tuple[str, ...]  # names of `systems.SYSTEMS`; those the paper shows first
    paper_model: str  # how the figures' table begins the name
    paper_cluster: str

    @property
    def key(self) -> str:
        """Unique, and short enough to print."""
        return f"{self.model} on {self.cluster}"


PARALLELIZERS = ("Tangram-grid", "Tangram-galvatron")  # ours; the paper does not show them
DENSE = (
    "Metis as published",
    "Metis",
    "Sailor",
    "Alpa",
    "Aceso",
    "Tangram-Alpa",
    "Tangram-Aceso",
    *PARALLELIZERS,
)
GSHARD = ("Alpa", "Tangram-Alpa", "Tangram-Aceso", *PARALLELIZERS)
MIXTURES = ("Galvatron-uniform", "Tangram", *PARALLELIZERS, "Tangram-Alpa", "Tangram-Aceso")
ISLANDS = ("Metis as published", "Metis", "Sailor", "Tangram-Aceso", "Tangram-Alpa", *PARALLELIZERS)
GPT7, GPT13 = "GPT-3 6.7B", "GPT-3 13B"

SETUPS = (
    Setup("Fig. 8", "gpt3-6.7b", "azure-c1-t4x16", 2048, DENSE, GPT7, "16xT4"),
    Setup("Fig. 8", "gpt3-6.7b", "azure-c1-t4x12-v100x4", 2048, DENSE, GPT7, "12xT4+4xV100-16"),
    Setup("Fig. 8", "gpt3-6.7b", "azure-c1-t4x8-v100x8", 2048, DENSE, GPT7, "8xT4+8xV100-16"),
    Setup("Fig. 8", "gpt3-6.7b", "azure-c1-t4x4-v100x12", 2048, DENSE, GPT7, "4xT4+12xV100-16"),
    Setup("Fig. 8", "gpt3-6.7b", "azure-c1-v100x16", 2048, DENSE, GPT7, "16xV100-16"),
    Setup(
        "Fig. 9", "gshard-moe-2.4b", "azure-c1-t4x4-v100x4", 1024, GSHARD, "GShard MoE 2.4B", "4xT4+4xV100-16"
    ),
    Setup(
        "Fig. 9", "gshard-moe-7.1b", "azure-c1-t4x8-v100x8", 1024, GSHARD, "GShard MoE 7.1B", "8xT4+8xV100-16"
    ),
    Setup(
        "Fig. 9", "gshard-moe-10b", "azure-c1-t4x8-v100x8", 1024, GSHARD, "GShard MoE 10B", "8xT4+8xV100-16"
    ),
    Setup(
        "Fig. 10",
        "mixtral-8x7b-16l",
        "azure-c2-a100x4-h100x4",
        4096,
        MIXTURES,
        "Mixtral-8x7B L=16",
        "4xA100-80+4xH100NVL",
    ),
    Setup(
        "Fig. 10",
        "qwen3-30b-a3b-24l",
        "azure-c2-a100x4-h100x4",
        4096,
        MIXTURES,
        "Qwen3-30B-A3B L=24",
        "4xA100-80+4xH100NVL",
    ),
    Setup(
        "Fig. 10",
        "mixtral-8x7b",
        "azure-c2",
        4096,
        (*MIXTURES, "Tangram, A100s in front", "Tangram, its plan turned round"),
        "Mixtral-8x7B L=32",
        "8xA100-80+8xH100NVL",
    ),
    Setup(
        "Fig. 10", "qwen3-30b-a3b", "azure-c2", 4096, MIXTURES, "Qwen3-30B-A3B L=48", "8xA100-80+8xH100NVL"
    ),
    Setup("Fig. 11", "gpt3-13b", "azure-c3-a100x4", 2048, ISLANDS, GPT13, "4xA100-80"),
    Setup("Fig. 11", "gpt3-13b", "azure-c3-a100x4-v100x8", 2048, ISLANDS, GPT13, "4xA100-80+8xV100-32"),
    Setup(
        "Fig. 11",
        "gpt3-13b",
        "azure-c3-a100x4-v100x12",
        2048,
        ISLANDS,
        GPT13,
        "4xA100-80+8xV100-32+4xV100-16",
    ),
    Setup(
        "Fig. 11",
        "gpt3-13b",
        "azure-c3",
        2048,
        ISLANDS,
        GPT13,
        "4xA100-80+8xV100-32+4xV100-16+4xT4",
    ),
)

ABLATED = ("gpt3-6.7b", "azure-c1-t4x8-v100x8", 2048)  # Fig. 12
# Fig. 13: GPT-3 13B on one to four islands, and how the table of planning times begins the clusters' names.
ISLAND_CLUSTERS = {
    "azure-c3-a100x4": "4xA100 (",
    "azure-c3-a100x4-v100x8": "4xA100+8xV100-32",
    "azure-c3-a100x4-v100x12": "+4xV100-16",
    "azure-c3": "+4xT4",
}
