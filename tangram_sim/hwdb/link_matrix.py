"""The matrix that `nvidia-smi topo -m` prints: the connection of each pair of GPUs, and of each GPU and NIC.

Cells as its own legend explains them, nearest first: NV# (that many NVLinks, which hides the PCIe
connection), PIX (one PCIe switch), PXB (several), PHB (one host bridge), NODE (bridges of one NUMA node), SYS
(across sockets; SOC in old drivers). NICs are columns next to the GPUs: `NIC0` or, in old drivers, `mlx5_0`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from tangram_sim.errors import BadInputError

BELOW_SWITCH = frozenset({"PIX", "PXB"})  # without a host bridge between
_ONE_SOCKET = BELOW_SWITCH | {"PHB", "NODE"}
_FAR = frozenset({"SYS", "SOC"})
_NVLINKS = re.compile(r"NV(\d{1,3})")
_STEERING = re.compile(r"\x1b\[[0-9;]*m")  # the header is printed underlined, into files too
_MOST_GPUS = 64


@dataclass(frozen=True, slots=True)
class LinkMatrix:
    """Connections among the GPUs of one node, by number, and between its NICs and GPUs."""

    nvlinks: tuple[tuple[int, ...], ...]  # between each pair of GPUs; 0 where PCIe alone joins them
    pcie: tuple[tuple[str, ...], ...]  # PIX, PXB, PHB, NODE, SYS between each pair; "" behind NVLinks
    nics: tuple[tuple[str, ...], ...]  # of each NIC, how it is joined to each GPU
    numa: tuple[str, ...]  # NUMA node of each GPU; "" where the matrix does not print it

    @property
    def gpus(self) -> int:
        """Number of GPUs in the node."""
        return len(self.nvlinks)

    @property
    def near_nics(self) -> int:
        """NICs that share a PCIe switch with a GPU and so carry its traffic; all NICs, if none does."""
        near = sum(any(cell in BELOW_SWITCH for cell in nic) for nic in self.nics)
        return near or len(self.nics)

    def sockets(self) -> tuple[tuple[int, ...], ...]:
        """GPUs by host bridge: same NUMA node, or closer than SYS to each other or to the same NIC."""
        return self._joined(
            lambda a, b: (
                (self.numa[a] == self.numa[b] != "")
                or self.pcie[a][b] in _ONE_SOCKET
                or any(nic[a] in _ONE_SOCKET and nic[b] in _ONE_SOCKET for nic in self.nics)
            )
        )

    def switches(self) -> tuple[tuple[int, ...], ...]:
        """GPUs by PCIe switch: PIX or PXB to each other or, where NVLinks hide that, to the same NIC."""
        return self._joined(
            lambda a, b: (
                self.pcie[a][b] in BELOW_SWITCH
                or any(nic[a] in BELOW_SWITCH and nic[b] in BELOW_SWITCH for nic in self.nics)
            )
        )

    def _joined(self, near: Callable[[int, int], bool]) -> tuple[tuple[int, ...], ...]:
        """GPUs in groups: the connected components of `near`."""
        groups: list[list[int]] = []
        for gpu in range(self.gpus):
            own = [group for group in groups if any(near(other, gpu) for other in group)]
            groups = [group for group in groups if group not in own]
            groups.append(sorted([gpu, *(other for group in own for other in group)]))
        return tuple(tuple(group) for group in sorted(groups))


def is_link_matrix(text: str) -> bool:
    """Whether a text looks like `nvidia-smi topo -m`."""
    return _header(_lines(text)) is not None


def link_matrix(text: str, where: str) -> LinkMatrix:
    """The matrix of one node. Raises BadInputError naming what is missing or contradictory."""
    lines = _lines(text)
    place = _header(lines)
    if place is None:
        raise BadInputError(f"{where}: no line with GPU0; save `nvidia-smi topo -m`")
    names = _devices(lines[place])
    gpus = [name for name in names if re.fullmatch(r"GPU\d+", name)]
    if gpus != [f"GPU{number}" for number in range(len(gpus))] or names[: len(gpus)] != gpus:
        raise BadInputError(f"{where}: its columns do not begin with GPU0, GPU1, ... in order")
    if len(gpus) > _MOST_GPUS:
        raise BadInputError(f"{where}: {len(gpus)} GPUs in one node; {_MOST_GPUS} or fewer are read")
    rows = {words[0]: words[1:] for line in lines[place + 1 :] if (words := line.split())}
    table = [_cells(rows.get(name), name, names, where) for name in gpus]
    for a in range(len(gpus)):
        for b in range(a):
            if table[a][b] != table[b][a]:
                raise BadInputError(
                    f"{where}: GPU{b} to GPU{a} is {table[b][a]}, back it is {table[a][b]}; a matrix is the "
                    "same both ways"
                )
    many = range(len(gpus))
    affinity = "NUMA" in lines[place].split()
    return LinkMatrix(
        tuple(tuple(_count(table[a][b]) for b in many) for a in many),
        tuple(tuple("" if _count(table[a][b]) or a == b else table[a][b] for b in many) for a in many),
        tuple(tuple(row[column] for row in table) for column in range(len(gpus), len(names))),
        tuple(_numa(rows[name], len(names)) if affinity else "" for name in gpus),
    )


def _lines(text: str) -> list[str]:
    return _STEERING.sub("", text).splitlines()


def _header(lines: list[str]) -> int | None:
    """Index of the line of column names, which begins with GPU0 and is not a row; None without one."""
    split = (line.split() for line in lines)
    return next((i for i, words in enumerate(split) if words[:1] == ["GPU0"] and "X" not in words), None)


def _devices(header: str) -> list[str]:
    """Names of the columns up to `CPU Affinity`."""
    words = header.split()
    return words[: words.index("CPU")] if "CPU" in words else words


def _cells(row: list[str] | None, name: str, names: list[str], where: str) -> list[str]:
    """Checked cells of one GPU's row, with `X` on the diagonal."""
    if row is None or len(row) < len(names):
        given = "no row" if row is None else f"{len(row)} cells"
        raise BadInputError(f"{where}: {given} of {name} where {len(names)} devices are listed")
    for column, cell in zip(names, row, strict=False):
        known = cell in _ONE_SOCKET or cell in _FAR or bool(_NVLINKS.fullmatch(cell))
        if not (cell == "X" if column == name else known):
            raise BadInputError(
                f"{where}: {cell!r} between {name} and {column}; known are NV#, PIX, PXB, PHB, NODE, SYS"
            )
    return row[: len(names)]


def _count(cell: str) -> int:
    found = _NVLINKS.fullmatch(cell)
    return int(found[1]) if found else 0


def _numa(row: list[str], devices: int) -> str:
    """The NUMA node: the second word after the cells and the list of cores; "" where it is missing."""
    rest = row[devices:]
    return rest[1] if len(rest) > 1 and rest[1].isdigit() else ""
