"""`tangram models`: the shipped models, and the parameters of one of them."""

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from tangram_sim.cli import options as shared
from tangram_sim.cli.console import print_json, print_table

app = typer.Typer(help="Models: shipped ones, and files of your own.", no_args_is_help=True)


@app.command("list")
def list_models(as_json: shared.AsJson = False) -> None:
    """List the shipped models."""
    from tangram_sim.hwdb import load_model, model_names

    found = [load_model(name) for name in model_names()]
    if as_json:
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
def template(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.json", help="A config.json of any family.")],
    output: shared.Output = None,
) -> None:
    """Write a model.yaml filled in as far as CONFIG.json goes, for a family that is not read by itself."""
    from tangram_sim.cli.console import print_line
    from tangram_sim.cli.writing import require_writable
    from tangram_sim.datafiles import read_json, write_whole
    from tangram_sim.errors import BadInputError
    from tangram_sim.hwdb.model_template import template as filled

    require_writable(output=output)
    facts = read_json(config)
    if not isinstance(facts, dict):
        raise BadInputError(f"{config}: expected a JSON object such as a Hugging Face config.json")
    name = config.resolve().parent.name if config.name == "config.json" else config.stem
    text = filled(facts, name)
    if output is None:
        sys.stdout.write(text)
        return
    write_whole(output, text)
    print_line(f"written to {output}; look at it with `tangram models show {output}`")


@app.command("show")
def show(model: shared.ModelArgument, as_json: shared.AsJson = False) -> None:
    """Show one model: parameters, layer kinds, source."""
    from tangram_sim.hwdb import load_model
    from tangram_sim.hwdb.model_section import model_to_dict
    from tangram_sim.studies.documents import ModelDocument

    found = load_model(model)
    document = ModelDocument.from_objects(found, blocks=model_to_dict(found)["blocks"])
    if as_json:
        print_json(document.model_dump())
        return
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
    """Runs of layers as a sum, what repeats in a row once: `23 x (1 x [a] + 1 x [b]) + 1 x [a]`."""
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
