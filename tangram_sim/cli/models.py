"""`tangram models`: the shipped models, and the parameters of one of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tangram_sim.cli.console import print_json, print_table
from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import FileOutput, Shown
from tangram_sim.fields import about
from tangram_sim.questions.shared_fields import model_argument

if TYPE_CHECKING:
    from tangram_sim.models import Model

app = typer.Typer(help="Models: shipped ones, and files of your own.", no_args_is_help=True)


@dataclass(frozen=True, slots=True)
class NamedModel:
    """Name of the model to show."""

    model: str = model_argument()


@dataclass(frozen=True, slots=True)
class OwnConfig:
    """The configuration of a model of one's own."""

    config: Path = field(metadata=about("A config.json of any family.", positional="CONFIG.json"))


@app.command("list")
@derived
def list_models(shown: Shown) -> None:
    """List the shipped models."""
    from tangram_sim.hwdb import load_model, model_names

    found = [load_model(name) for name in model_names()]
    if shown.as_json:
        print_json(
            [
                {"name": m.name, "family": m.family, "parameters": m.parameters, "layers": m.layers}
                for m in found
            ]
        )
        return
    rows = [
        (m.name, m.family, f"{m.parameters / 1e9:.3g} B", str(m.layers), str(m.hidden), str(m.vocab))
        for m in found
    ]
    print_table(("model", "family", "parameters", "layers", "hidden", "vocab"), rows, right=(2, 3, 4, 5))


@app.command("template")
@derived
def template(given: OwnConfig, outputs: FileOutput) -> None:
    """Write a model.yaml with the facts in CONFIG.json, for a model family that cannot be read directly."""
    from tangram_sim.datafiles import read_json
    from tangram_sim.errors import BadInputError
    from tangram_sim.hwdb.model_template import template as filled

    outputs.require_writable()
    config, output = given.config, outputs.output
    facts = read_json(config)
    if not isinstance(facts, dict):
        raise BadInputError(f"{config}: expected a JSON object such as a Hugging Face config.json")
    name = config.resolve().parent.name if config.name == "config.json" else config.stem
    outputs.write(filled(facts, name), f"written to {output}; look at it with `tangram models show {output}`")


@app.command("show")
@derived
def show(asked: NamedModel, shown: Shown) -> None:
    """Show one model: parameters, layer kinds, source."""
    from tangram_sim.hwdb import load_model
    from tangram_sim.hwdb.model_section import model_to_dict
    from tangram_sim.studies.documents import ModelDocument

    found = load_model(asked.model)
    document = ModelDocument.from_objects(found, blocks=model_to_dict(found)["blocks"])
    shown.show(document, lambda _: _show(found))


def _show(found: "Model") -> None:
    """Print the figures of a model, and their sources."""
    rows: list[tuple[str, Any]] = [
        ("family", found.family),
        ("parameters", f"{found.parameters:,} ({found.active_parameters:,} active)"),
        (
            "layers",
            folded([f"{len(list(same))} x {_kind(block)}" for block, same in groupby(found.blocks)]),
        ),
        ("hidden", found.hidden),
        ("vocabulary", f"{found.vocab}{' (tied)' if found.tied else ''}"),
        ("longest sequence", found.max_seq or "not stated"),
        ("source", found.source),
    ]
    if found.defaults:
        rows.append(("not in its file, taken", ", ".join(found.defaults)))
    print_table((found.name, ""), [(name, str(value)) for name, value in rows])


def folded(runs: Sequence[str]) -> str:
    """Runs of layers as a sum, repetitions written once: `23 x (1 x [a] + 1 x [b]) + 1 x [a]`."""
    found, place = list[str](), 0
    while place < len(runs):
        best = 1, 1  # runs of a period, how often it stands there in a row
        for period in range(2, (len(runs) - place) // 2 + 1):
            times = 1
            while runs[place + times * period : place + (times + 1) * period] == runs[place : place + period]:
                times += 1
            if times > 1 and times * period > best[0] * best[1]:
                best = period, times
        period, times = best
        words = " + ".join(runs[place : place + period])
        found.append(f"{times} x ({words})" if times > 1 else words)
        place += period * times
    return " + ".join(found)


def _kind(block: Any) -> str:
    part, attention = block.feed_forward, block.attention
    heads = f"{attention.heads} heads" + (
        f" ({attention.kv_heads} kv)" if attention.kv_heads != attention.heads else ""
    )
    if hasattr(part, "experts"):
        return f"[{heads}, {part.active} of {part.experts} experts of {part.width}]"
    return f"[{heads}, width {part.width}]"
