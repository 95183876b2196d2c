"""A private HTML file that redirects a browser to the page, so that no command line shows the access token.

Other users of a machine can see the command lines of its processes, including the browser's; they cannot read
a file of mode 600.
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
def redirect_page(address: str) -> Iterator[str]:
    """Write a file that redirects to `address`, give its `file:` URL, and delete it when the block ends."""
    number, name = tempfile.mkstemp(prefix="tangram-web-", suffix=".html")  # mode 600
    path = Path(name)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as stream:
            stream.write(_PAGE.format(address=escape(address)))
        yield path.as_uri()
    finally:
        path.unlink(missing_ok=True)
