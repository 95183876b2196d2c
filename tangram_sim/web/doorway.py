"""A file of one's own that leads a browser to the page: the token stands in it, not in a command line.

Other users of a machine see the command lines of its processes, the browser's too; a file of mode 600 they
cannot read.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path

_PAGE = """\
<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={address}">
<title>tangram web</title>
<p><a href="{address}">Go on to the page.</a>
"""


@contextmanager
def doorway(address: str) -> Iterator[str]:
    """The `file:` address of a file that leads to `address`, there while the block lasts."""
    number, name = tempfile.mkstemp(prefix="tangram-web-", suffix=".html")  # mode 600
    path = Path(name)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as stream:
            stream.write(_PAGE.format(address=escape(address)))
        yield path.as_uri()
    finally:
        path.unlink(missing_ok=True)
