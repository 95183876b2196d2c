"""Input of a flow problem over layer placements: nodes that hold contiguous layers, links for tokens."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FlowNode:
    """A node that processes `tokens_per_s[k - 1]` while it holds k layers; it cannot hold more."""

    kind: str
    tokens_per_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class FlowProblem:
    """Nodes to hold `layers` layers; `link_tokens_per_s[i][j]` is the capacity from node i to node j.

    The last row and column are the host, where requests come from and answers go to.
    """

    layers: int
    nodes: tuple[FlowNode, ...]
    link_tokens_per_s: tuple[tuple[float, ...], ...]

    @property
    def host(self) -> int:
        """Index of the host in the rows and columns of the links."""
        return len(self.nodes)

    def of_kind(self, kind: str) -> "FlowProblem":
        """The problem with the nodes of one kind only."""
        kept = [i for i, node in enumerate(self.nodes) if node.kind == kind]
        rows = [*kept, self.host]
        links = tuple(tuple(self.link_tokens_per_s[i][j] for j in rows) for i in rows)
        return FlowProblem(self.layers, tuple(self.nodes[i] for i in kept), links)


Held = tuple[int, int] | None  # layers [first, end) of a node; None where it holds none
Placement = tuple[Held, ...]


def relaxed_bound(problem: FlowProblem) -> float:
    """Upper bound on the tokens/s of every placement.

    The minimum of what the nodes can process (tokens/s times layers, over all layers) and what the host's
    links carry.
    """
    work = sum(
        max((k + 1) * rate for k, rate in enumerate(node.tokens_per_s[: problem.layers]))
        for node in problem.nodes
    )
    host = problem.host
    out = sum(problem.link_tokens_per_s[host][:host])
    back = sum(problem.link_tokens_per_s[i][host] for i in range(host))
    return min(work / problem.layers, out, back)


def alike(problem: FlowProblem) -> list[tuple[int, int]]:
    """Pairs of interchangeable nodes; each node is paired with the next equal one."""
    links, found = problem.link_tokens_per_s, []
    last: dict[int, int] = {}
    for j in range(problem.host):
        for i in sorted(last.values(), reverse=True):
            others = [m for m in range(problem.host + 1) if m not in (i, j)]
            if (
                problem.nodes[i].tokens_per_s == problem.nodes[j].tokens_per_s
                and links[i][j] == links[j][i]
                and all(links[i][m] == links[j][m] and links[m][i] == links[m][j] for m in others)
            ):
                found.append((i, j))
                del last[i]
                break
        last[j] = j
    return found
