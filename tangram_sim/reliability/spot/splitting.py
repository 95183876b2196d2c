"""Unequal pipelines: sizes that cover every number of nodes.

Templates of Oobleck (Jang et al., SOSP 2023): pipelines of n0 .. 2 n0 - 1 nodes, prepared before any failure.
"""


def cover(nodes: int, least: int, replicas: int = 1) -> tuple[int, ...]:
    """Sizes of at least `replicas` pipelines, each `least` to 2 x `least` - 1 nodes, that use all nodes.

    As many pipelines as fit, as equal as can be, the larger ones first. Raises ValueError where none fit.
    """
    pipelines = nodes // least
    if pipelines < max(1, replicas):
        raise ValueError(f"{nodes} nodes hold {pipelines} pipelines of {least}; {replicas} are wanted")
    small, larger = divmod(nodes, pipelines)
    return (small + 1,) * larger + (small,) * (pipelines - larger)
