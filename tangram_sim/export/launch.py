"""A launch script for torchrun: starts processes on each node so that every rank gets its planned GPU.

An agent (one torchrun process) gets consecutive ranks, as many as it starts, in order of `--node-rank`
(torch.distributed.elastic, `_assign_worker_ranks`: cumulative sums, so agents may differ in size). Ranks that
are on one node but not consecutive need one agent each; CUDA_VISIBLE_DEVICES lists the GPUs of an agent in
order.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tangram_sim.clusters import Cluster, Gpu
from tangram_sim.errors import BadInputError
from tangram_sim.export.quoting import comment, word, words
from tangram_sim.export.rankmap import places_of
from tangram_sim.units import MIB

FILE = "launch.sh"


@dataclass(frozen=True, slots=True)
class StartedProgram:
    """Arguments and environment of every process of a framework.

    `arguments` go after the program's name and before those that the user adds.
    """

    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


BARE = StartedProgram()


@dataclass(frozen=True, slots=True)
class Agent:
    """One torchrun process: consecutive ranks on GPUs of one node."""

    node: int
    first_rank: int
    local_gpus: tuple[int, ...]
    kind: str


def agents_of(ranks: Sequence[int], cluster: Cluster) -> tuple[Agent, ...]:
    """The fewest agents that give rank r the cluster's GPU `ranks[r]`."""
    places, found = places_of(cluster), list[Agent]()
    for rank, gpu in enumerate(ranks):
        node, local, kind = places[gpu]
        if found and found[-1].node == node:
            last = found[-1]
            found[-1] = Agent(node, last.first_rank, (*last.local_gpus, local), kind)
        else:
            found.append(Agent(node, rank, (local,), kind))
    return tuple(found)


def split_nodes(agents: Sequence[Agent]) -> tuple[int, ...]:
    """Numbers of the nodes on which more than one agent runs."""
    nodes = [agent.node for agent in agents]
    return tuple(node for node in dict.fromkeys(nodes) if nodes.count(node) > 1)


_HEAD = """\
#!/bin/sh
# {what}
# On the node of each agent: MASTER_ADDR=<host of agent 0> sh {file} AGENT [PROGRAM [ARGUMENTS...]]
# Without a program: the one of settings.sh. All agents of a planned node: sh {file} node NODE [PROGRAM ...]
# Nodes and GPUs are numbered from 0, nodes in the order of the cluster file.
set -eu
{check}agent=${{1:?give the number of an agent, 0 to {last}, or node and the number of a node}}
shift
if [ "$agent" = node ]; then
  node=${{1:?give the number of a node}}
  shift
  case "$node" in
{nodes}  *) echo "node $node: the plan runs nothing on it" >&2; exit 2 ;;
  esac
  started=
  for one in $agents; do
    sh "$0" "$one" "$@" &
    started="$started $!"
  done
  failed=0
  for one in $started; do wait "$one" || failed=$?; done
  exit "$failed"
fi
if [ "$#" = 0 ]; then
  cd -- "$(dirname -- "$0")"
  . ./settings.sh
  PYTHONPATH=$PWD${{PYTHONPATH:+:$PYTHONPATH}}
  export PYTHONPATH
fi
{planned}case "$agent" in
"""
_PLANNED = """\
program=${{1:?give the program that trains}}
shift
set -- "$program" \\
  {words} \\
  "$@"
"""
_LINE = """\
  {agent}) # node {node}: {kind}, ranks {first} to {last}
    {look}CUDA_VISIBLE_DEVICES={gpus} exec torchrun --nnodes={agents} --node-rank={agent} \
--nproc-per-node={count} --master-addr="${{MASTER_ADDR:?}}" --master-port="${{MASTER_PORT:-29500}}" "$@" ;;
"""
_CHECK = """\
# Fails on a node that is not the one planned for; SKIP_GPU_CHECK=1 starts without looking.
look() { # KIND LEAST MIB: so many GPUs of a kind must be here, each with so much memory
  [ -z "${SKIP_GPU_CHECK:-}" ] || return 0
  here=$(nvidia-smi --query-gpu=name,memory.total --format=csv,noheader,nounits) ||
    wrong "no answer of nvidia-smi"
  found=$(printf '%s\\n' "$here" | grep -iw -- "$1" |
    awk -F', *' '$NF !~ /^[0-9]/ || $NF + 0 >= '"$3" | wc -l)
  [ "$found" -ge "$2" ] || wrong "agent $agent wants $2 GPUs of kind $1 with $3 MiB, here are: $here"
}
wrong() {
  echo "$1: wrong node? SKIP_GPU_CHECK=1 starts all the same" >&2
  exit 3
}
"""
# Names of gpus.csv whose first word is not the one that a driver says: the word that is.
_SERIES = ("RTX", "Titan")
_MEMORY_SEEN = 0.9  # of what a GPU is sold with: drivers keep some
_TAIL = """\
  *) echo "agent $agent: there are 0 to {last}" >&2; exit 2 ;;
esac
"""
_READ = re.compile(
    r"\) # node (?P<node>\d+): .*\n\s+(?:look \S+ \d+(?: \d+)?\n\s+)?"
    r"CUDA_VISIBLE_DEVICES=(?P<gpus>[\d,]+) exec torchrun "
    r"--nnodes=(?P<agents>\d+) "
    r"--node-rank=(?P<rank>\d+) --nproc-per-node=(?P<count>\d+) "
)


def write(ranks: Sequence[int], cluster: Cluster, what: str, program: StartedProgram = BARE) -> str:
    """A shell script that starts one agent; `what` (model and plan) goes into its heading comment."""
    agents = agents_of(ranks, cluster)
    last = len(agents) - 1
    lines = [
        _LINE.format(
            agent=number,
            node=agent.node,
            kind=comment(agent.kind),
            first=agent.first_rank,
            last=agent.first_rank + len(agent.local_gpus) - 1,
            gpus=",".join(map(str, agent.local_gpus)),
            look=f"{look}\n    " if (look := _look(agent, cluster)) else "",
            agents=len(agents),
            count=len(agent.local_gpus),
        )
        for number, agent in enumerate(agents)
    ]
    check = _CHECK if any(_look(agent, cluster) for agent in agents) else ""
    planned = "".join(f"export {name}={word(value)}\n" for name, value in program.environment)
    if program.arguments:
        planned += _PLANNED.format(words=_folded(program.arguments))
    numbers: dict[int, list[int]] = {}
    for number, agent in enumerate(agents):
        numbers.setdefault(agent.node, []).append(number)
    nodes = "".join(f"  {node}) agents={word(' '.join(map(str, own)))} ;;\n" for node, own in numbers.items())
    head = _HEAD.format(what=comment(what), file=FILE, last=last, check=check, planned=planned, nodes=nodes)
    return "".join([head, *lines, _TAIL.format(last=last)])


def _folded(arguments: Sequence[str]) -> str:
    """The arguments as shell words, each flag on its own line."""
    lines: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--") or not lines:
            lines.append([])
        lines[-1].append(argument)
    return " \\\n  ".join(map(words, lines))


def _look(agent: Agent, cluster: Cluster) -> str:
    """The shell call that checks an agent's GPUs and their memory; empty if no check is possible."""
    gpu = cluster.groups[cluster.node_group[agent.node]].node.gpu
    name, mib = _word(gpu), int(_MEMORY_SEEN * gpu.memory_bytes / MIB)
    return f"look {name} {max(agent.local_gpus) + 1} {mib}" if name else ""


def _word(gpu: Gpu) -> str:
    """A word of the GPU's name that `nvidia-smi` prints too, to check for it; empty for other vendors."""
    if gpu.vendor.lower() != "nvidia":
        return ""
    first, *rest = re.split(r"[-\s]", gpu.name)
    name = rest[0] if first in _SERIES and rest else first
    return re.sub(r"[^A-Za-z0-9]", "", re.sub(r"(?<=\d)(Ti|Super)$", "", name))


def read(text: str, cluster: Cluster) -> tuple[int, ...]:
    """The cluster's GPU of every rank, as torchrun numbers them. Raises BadInputError for other scripts."""
    found = [match.groupdict() for match in _READ.finditer(text)]
    ordered = sorted(found, key=lambda item: int(item["rank"]))
    if not found or [int(item["rank"]) for item in ordered] != list(range(int(found[0]["agents"]))):
        raise BadInputError(f"{FILE}: not a launch script of `tangram export`, or agents are missing")
    first = [0]
    for group in cluster.node_group:
        first.append(first[-1] + cluster.groups[group].node.gpus)
    ranks: list[int] = []
    for item in ordered:
        gpus = [int(gpu) for gpu in item["gpus"].split(",")]
        if len(gpus) != int(item["count"]):
            raise BadInputError(
                f"{FILE}: agent {item['rank']} starts {item['count']} processes on {len(gpus)} GPUs"
            )
        ranks += [first[int(item["node"])] + gpu for gpu in gpus]
    return tuple(ranks)
