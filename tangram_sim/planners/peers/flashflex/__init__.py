"""FlashFlex: pipelines of unlike shapes side by side, found by partitioning the graph of devices twice."""
