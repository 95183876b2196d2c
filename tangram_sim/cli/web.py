"""`tangram web`: starts a local web page for planning."""

import sys
from typing import Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.errors import BadInputError

Port = Annotated[int, typer.Option("--port", help="Port on 127.0.0.1; 0: any that is free.")]
Browse = Annotated[
    bool, typer.Option("--browser/--no-browser", help="Whether to open the page in your browser.")
]
AtOnce = Annotated[
    int, typer.Option("--at-once", help="Runs at the same time, all users together; 0: one per core.")
]


def command(
    port: Port = 0, browser: Browse = True, at_once: AtOnce = 0, hwdb: shared.HwdbFolders = None
) -> None:
    """Serve a page on this machine to plan, buy, serve and explain with; Ctrl-C ends it."""
    from tangram_sim.cli.console import print_line
    from tangram_sim.cli.main import run_verb

    if not 0 <= port < 1 << 16:
        raise BadInputError(f"--port {port}: give 0 to {(1 << 16) - 1}")
    if not 0 <= at_once <= 256:
        raise BadInputError(f"--at-once {at_once}: give 0 to 256")
    try:
        from tangram_sim.web.server import serve
    except ImportError:
        raise BadInputError('the page needs its extra: pip install "tangram-sim[web]"') from None

    def tell(address: str) -> None:
        print_line(f"open {address}")
        print_line("the address is yours alone: whoever has it can run searches here; Ctrl-C ends the page")
        sys.stdout.flush()

    folders = tuple(folder.resolve() for folder in hwdb or ())
    serve(run_verb, port=port, most=at_once, folders=folders, browse=browser, tell=tell)
