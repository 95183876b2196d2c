"""Flow of tokens through a given placement: the network of nodes and links, its maximum flow and its paths.

A node that ends at layer e may feed any node that holds [first, end) with first <= e < end, which continues
from layer e (partial inference, arXiv 2406.01566). Ends increase along every path, so there are no cycles.
"""

from dataclasses import dataclass

from tangram_sim.serving_planners.flow_problem import FlowProblem, Placement
from tangram_sim.serving_planners.program import LinearProgram
from tangram_sim.topology.maxflow import max_flow

_LEAST = 1e-9  # of the whole flow: less on a path is rounding


@dataclass(frozen=True, slots=True)
class TokenPath:
    """Nodes in the order in which a request visits them, and the share of the requests on this path."""

    nodes: tuple[int, ...]
    share: float


def open_links(problem: FlowProblem, placement: Placement) -> dict[tuple[int, int], float]:
    """Links that tokens may take under a placement, with their tokens/s; paths begin and end at the host."""
    host, arcs = problem.host, {}
    for i, held in enumerate(placement):
        if held is None:
            continue
        if held[0] == 0:
            arcs[host, i] = problem.link_tokens_per_s[host][i]
        if held[1] == problem.layers:
            arcs[i, host] = problem.link_tokens_per_s[i][host]
        for j, other in enumerate(placement):
            if other is not None and j != i and other[0] <= held[1] < other[1]:
                arcs[i, j] = problem.link_tokens_per_s[i][j]
    return arcs


def node_rate(problem: FlowProblem, placement: Placement, node: int) -> float:
    """Tokens/s that a node can process with the layers that it holds."""
    held = placement[node]
    return 0.0 if held is None else problem.nodes[node].tokens_per_s[held[1] - held[0] - 1]


def throughput(problem: FlowProblem, placement: Placement) -> float:
    """Maximum tokens/s from the host through all layers and back."""
    # Vertices: 2i a node's entrance, 2i + 1 its exit, then the host's exit and entrance.
    source, sink = 2 * problem.host, 2 * problem.host + 1
    arcs = {
        (source if i == problem.host else 2 * i + 1, sink if j == problem.host else 2 * j): rate
        for (i, j), rate in open_links(problem, placement).items()
    }
    for i, held in enumerate(placement):
        if held is not None:
            arcs[2 * i, 2 * i + 1] = node_rate(problem, placement, i)
    return max_flow(arcs, source, sink)[0]


def largest_flow(problem: FlowProblem, placement: Placement) -> tuple[float, dict[tuple[int, int], float]]:
    """(maximum flow in tokens/s, tokens/s over each link), by a linear program."""
    program, host = LinearProgram(), problem.host
    flow = {link: program.variable(rate) for link, rate in open_links(problem, placement).items()}
    if not flow:
        return 0.0, {}
    for i in range(len(placement)):
        entering = [(v, 1.0) for (_, head), v in flow.items() if head == i]
        leaving = [(v, -1.0) for (tail, _), v in flow.items() if tail == i]
        program.row([*entering, *leaving], low=0.0, high=0.0)
        program.row(entering, high=node_rate(problem, placement, i))
    sent = [(v, 1.0) for (tail, _), v in flow.items() if tail == host]
    values = program.maximise(sent).values
    if values is None:
        return 0.0, {}
    return float(sum(values[v] for v, _ in sent)), {link: float(values[v]) for link, v in flow.items()}


def paths(problem: FlowProblem, flow: dict[tuple[int, int], float]) -> list[TokenPath]:
    """The flow decomposed into paths whose shares sum to 1, largest first.

    From every node a path follows the link with the most flow left.
    """
    host, left = problem.host, dict(flow)
    total = sum(rate for (tail, _), rate in flow.items() if tail == host)
    found: dict[tuple[int, ...], float] = {}
    while True:
        at, walked, width = host, [], float("inf")
        while True:
            onward = {
                head: rate for (tail, head), rate in left.items() if tail == at and rate > _LEAST * total
            }
            if not onward:
                break
            following = max(onward, key=lambda head: (onward[head], -head))
            walked.append((at, following))
            width, at = min(width, onward[following]), following
            if at == host:
                break
        if not walked or at != host:
            break
        for link in walked:
            left[link] -= width
        nodes = tuple(head for _, head in walked[:-1])
        found[nodes] = found.get(nodes, 0.0) + width
    whole = sum(found.values())
    told = [TokenPath(nodes, rate / whole) for nodes, rate in found.items()]
    return sorted(told, key=lambda path: (-path.share, path.nodes))
