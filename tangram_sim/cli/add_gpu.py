"""`tangram hw add-gpu`: writes hardware rows for a GPU that is not shipped, into a folder for --hwdb."""

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tangram_sim.cli.console import print_json, print_line, print_table
from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import Shown
from tangram_sim.fields import about, described, option, part
from tangram_sim.questions.shared_fields import Hardware

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.hwdb.own_gpu import OwnGpu

# What is asked on a terminal, and how; an empty answer leaves the rest to what is assumed.
_QUESTIONS = {
    "bf16_tflops": "Dense bf16 peak, TFLOP/s (empty: no bf16 units)",
    "fp16_tflops": "Dense fp16 peak, TFLOP/s (empty: as bf16)",
    "memory_gb": "Memory as sold, GB",
    "memory_gb_per_s": "Memory bandwidth, GB/s",
    "link": "Link to others of its kind, e.g. NVLink4 (empty: PCIe only)",
    "link_gb_per_s": "All its links together, GB/s in one direction (empty: the link's usual rate)",
}
_NEEDED = ("memory_gb", "memory_gb_per_s")
_LINK_OF = {"link_gb_per_s": "link"}  # asked only where the other was answered


_NUMBER: dict[str, Any] = {"reads": str, "unit": "number", "basic": True}


@described
@dataclass(frozen=True, slots=True)
class GpuColumns:
    """Columns of the row of a GPU, as they are typed; empty: not stated."""

    vendor: str = option("", "nvidia, amd, intel, ...", basic=True)
    architecture: str = option("", "Its generation; what is known of that one is borrowed.", basic=True)
    year: str = option("", "Of first sale.", **_NUMBER)
    fp32_tflops: str = option("", "Vector peak.", **_NUMBER)
    fp16_tflops: str = option("", "Dense peak; as bf16 if not given.", **_NUMBER)
    bf16_tflops: str = option("", "Dense peak with fp32 accumulation.", **_NUMBER)
    fp8_tflops: str = option("", "Dense peak; no units if not given.", **_NUMBER)
    memory_gb: str = option("", "Memory as sold, in 1e9 bytes.", **_NUMBER)
    memory_gb_per_s: str = option("", "Peak rate of the memory.", **_NUMBER)
    power_w: str = option("", "Board power as sold.", **_NUMBER)
    link: str = option("", "A link of `tangram hw list`; PCIe only if not given.", basic=True)
    link_gb_per_s: str = option("", "All its links together, in one direction.", **_NUMBER)
    pcie_gen: str = option("", "Generation of the host interface.", **_NUMBER)
    source: str = option("", "Where the figures were read.", basic=True)


@described
@dataclass(frozen=True, slots=True)
class NewGpu:
    """A GPU that is not shipped, and where its rows go."""

    name: str = field(metadata=about("What clusters call it, e.g. X900-64GB.", positional="NAME"))
    columns: GpuColumns = field(default=GpuColumns(), metadata=part())
    efficiency: float | None = option(
        None,
        "Share of its peaks that large matrix products reach, as you guess.",
        unit="a share",
        above=0,
        most=1,
        example="0.6",
        basic=True,
    )
    output: Path = option(
        Path("my-rows"), "The folder of your rows, for --hwdb.", spelled="-o,--output", basic=True
    )


@derived
def add_gpu(gpu: NewGpu, hardware: Hardware, shown: Shown) -> None:
    """Write the row of a new GPU into a folder for --hwdb, and list what is assumed in it.

    Required are a 16-bit peak, the memory and its bandwidth; what is missing is asked for on a terminal.
    """
    from datetime import date

    from tangram_sim.cli.writing import require_writable
    from tangram_sim.datafiles import write_all
    from tangram_sim.hwdb import own_gpu

    given, output = asdict(gpu.columns), gpu.output
    table = output / "gpus.csv"
    folders = tuple(folder for folder in hardware.hwdb if folder.resolve() != output.resolve())
    known = Hardware((*folders, output) if table.exists() else folders).load()
    own_gpu.require_new(gpu.name, known)
    if _at_terminal():
        given = _asked(given)
    made = own_gpu.own_gpu(gpu.name, given, known, date.today())
    files = {table: own_gpu.table_with(table, made.row)}
    if gpu.efficiency is not None:
        place = output / "efficiency" / f"{_file_name(gpu.name)}.csv"
        files[place] = own_gpu.efficiency_table(made.row.name, gpu.efficiency)
    require_writable(**{f"output {number}": path for number, path in enumerate(files)})
    reached = _reached(made, _as_it_will_be(output, files, folders))
    write_all(files)
    if shown.as_json:
        print_json(
            {
                "gpu": dict(made.row.cells),
                "assumed": [
                    {"column": assumed_cell.column, "value": assumed_cell.value, "why": assumed_cell.why}
                    for assumed_cell in made.assumed
                ],
                "efficiency": reached,
                "files": [str(path) for path in files],
            }
        )
    else:
        _print(made, reached, output, [str(path) for path in files])


def _as_it_will_be(output: Path, files: dict[Path, str], folders: tuple[Path, ...]) -> "Hwdb":
    """The hardware tables as they would be with `files` (text by path) in the folder `output`.

    They are read from a temporary copy, so that nothing is left in `output` if they are invalid. Raises
    TangramError then.
    """
    import tempfile

    from tangram_sim.errors import TangramError

    with tempfile.TemporaryDirectory() as made:
        rehearsal = Path(made) / "rows"
        _mirror(output, rehearsal, files)
        try:
            return Hardware((*folders, rehearsal)).load()
        except TangramError as error:
            raise type(error)(str(error).replace(str(rehearsal), str(output))) from None


def _mirror(folder: Path, mirror: Path, files: dict[Path, str]) -> None:
    """Create `mirror`, a copy of `folder` with `files` (text by path) added or replaced.

    Entries that do not change are symbolic links to those of `folder`.
    """
    mirror.mkdir()
    for path, text in files.items():
        if path.parent == folder:
            (mirror / path.name).write_text(text, encoding="utf-8")
    below = {folder / path.relative_to(folder).parts[0] for path in files if path.parent != folder}
    for inner in below:
        within = {path: text for path, text in files.items() if inner in path.parents}
        _mirror(inner, mirror / inner.name, within)
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry not in files and entry not in below:
            (mirror / entry.name).symlink_to(entry.resolve())


def _at_terminal() -> bool:
    """Whether standard input and standard error are terminals, so that questions can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _asked(given: dict[str, str]) -> dict[str, str]:
    """The columns `given`, with the user's answers (possibly empty) for required columns that are empty."""
    answers = dict(given)
    for column, question in _QUESTIONS.items():
        skipped = column in _LINK_OF and not answers[_LINK_OF[column]]
        if not answers[column] and not skipped:
            answers[column] = str(typer.prompt(question, default="", show_default=False, err=True)).strip()
        if column in _NEEDED and not answers[column]:
            # Without it there is no row: who only pressed enter is asked once more before anything else.
            again = f"{question} (needed: a number)"
            answers[column] = str(typer.prompt(again, default="", show_default=False, err=True)).strip()
    return answers


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name).lstrip(".")


def _reached(made: "OwnGpu", hwdb: "Hwdb") -> dict[str, Any]:
    """The fraction of the 16-bit peak that a large matrix product reaches, with its table row.

    Keys: `value` and `sigma` (standard error), both fractions of the peak, `of` (the GPU or architecture that
    the row is for) and `source`.
    """
    dtype = "bf16" if made.row["bf16_tflops"] else "fp16"
    places = (made.row.name, f"arch:{made.row['architecture']}", "*")
    row = hwdb.efficiency_row("gemm", "efficiency", places, dtype, "generic")
    return {
        "value": row.number("value"),
        "sigma": row.number("sigma"),
        "of": row["gpu"],
        "source": row["source"],
    }


def _print(made: "OwnGpu", reached: dict[str, Any], folder: Path, files: list[str]) -> None:
    assumed = {assumed_cell.column for assumed_cell in made.assumed}
    given = [(c, cell) for c, cell in made.row.cells.items() if c not in assumed and c != "name"]
    print_table((made.row.name, "given"), given)
    print_table(
        ("assumed", "value", "why"),
        [(assumed_cell.column, assumed_cell.value or "-", assumed_cell.why) for assumed_cell in made.assumed],
    )
    of = {"*": "any GPU"}.get(reached["of"], str(reached["of"]).removeprefix("arch:"))
    print_line(
        f"Large matrix products reach {reached['value']:g} of the peak, give or take {reached['sigma']:g} "
        f"(the row of {of}); a guess of yours: --efficiency 0.6."
    )
    print_line(
        f"written to {' and '.join(files)}; use it with --hwdb {folder}, see "
        f"`tangram hw show {made.row.name} --hwdb {folder}`"
    )
