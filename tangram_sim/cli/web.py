"""`tangram web`: starts a local web page for planning."""

import sys
from dataclasses import dataclass
from pathlib import Path

from tangram_sim.cli.derived import asking
from tangram_sim.errors import BadInputError
from tangram_sim.fields import option, require_valid


@dataclass(frozen=True, slots=True)
class PageSettings:
    """How the page is served."""

    port: int = option(0, "Port on 127.0.0.1; 0: any that is free.", basic=True, least=0, most=(1 << 16) - 1)
    browser: bool = option(
        True, "Whether to open the page in your browser.", basic=True, spelled="--browser/--no-browser"
    )
    at_once: int = option(0, "Runs at the same time, all users together; 0: one per core.", least=0, most=256)
    history: bool = option(
        True,
        "Whether answers are kept on this machine: in tangram-sim/history below XDG_DATA_HOME or "
        "~/.local/share.",
        basic=True,
        spelled="--history/--no-history",
    )
    hwdb: tuple[Path, ...] = option(
        (), "Folder with rows of your own; may be given several times, last wins."
    )

    def __post_init__(self) -> None:
        """Raise BadInputError for figures outside their bounds."""
        require_valid(self)


def _command(settings: PageSettings) -> None:
    """Serve a local web page for planning, buying, serving and explaining; Ctrl-C ends it."""
    from tangram_sim.cli.console import print_line
    from tangram_sim.cli.main import run_verb

    try:
        from tangram_sim.web.server import serve
    except ImportError:
        raise BadInputError('the page needs its extra: pip install "tangram-sim[web]"') from None

    def tell(address: str) -> None:
        print_line(f"open {address}")
        print_line("the address is yours alone: whoever has it can run searches here; Ctrl-C ends the page")
        sys.stdout.flush()

    folders = tuple(folder.resolve() for folder in settings.hwdb)
    serve(
        run_verb,
        port=settings.port,
        most=settings.at_once,
        folders=folders,
        browse=settings.browser,
        keep=settings.history,
        tell=tell,
    )


command = asking(_command, settings=PageSettings)
