"""FlashFlex: pipelines of different shapes side by side, found by partitioning the device graph twice."""
