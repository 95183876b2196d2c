"""Options declared once as a dataclass and taken by several verbs."""

from dataclasses import dataclass, field
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from tangram_sim.cli.derived import derived
from tangram_sim.fields import about, option


@dataclass(frozen=True, slots=True)
class Speed:
    rate: float = field(metadata=about("How fast."))
    unit: str = option("m/s", "Of the rate.")


def test_a_group_is_taken_whole_and_its_required_fields_are_asked_for() -> None:
    app = typer.Typer()

    @app.command()
    @derived
    def show(name: Annotated[str, typer.Argument()], speed: Speed, loud: bool = False) -> None:
        typer.echo(f"{name} {speed} {loud}")

    shown = CliRunner().invoke(app, ["hare", "--rate", "18", "--loud"])
    assert shown.output == "hare Speed(rate=18.0, unit='m/s') True\n"
    assert CliRunner().invoke(app, ["hare"]).exit_code == 2


def test_two_options_of_one_name_are_refused() -> None:
    def show(speed: Speed, rate: float = 0.0) -> None: ...

    with pytest.raises(TypeError, match="declared twice"):
        derived(show)
