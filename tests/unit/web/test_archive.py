"""The launch folder as one archive: what the page's script writes is what `tar` reads."""

import base64
import io
import json
import tarfile

from tests.browser import browser
from tests.unit.web.live import live_page

FILES = {
    "run.sh": "#!/bin/sh\necho \u00e9\n",
    "conf/model.yaml": "a: 1\n" * 200,
    "empty.txt": "",
    f"{'deep/' * 25}plan.json": "{}",
}


def test_an_archive_holds_every_file_and_scripts_can_be_run():
    with live_page() as served, browser() as found:
        page = found.another(served.home)
        page.open(served.address)
        page.evaluate(
            "import('/archive.js').then(async ({ archive }) => { const bytes = new Uint8Array(await archive("
            f"{json.dumps(FILES)}).arrayBuffer()); window.made = btoa(String.fromCharCode(...bytes)); }})"
        )
        assert page.wait_for("Boolean(window.made)")
        made = base64.b64decode(page.evaluate("window.made"))
    with tarfile.open(fileobj=io.BytesIO(made)) as tar:
        members = tar.getmembers()
        texts = {each.name: tar.extractfile(each).read().decode() for each in members}
    assert texts == FILES
    assert [each.mode for each in members] == [0o755, 0o644, 0o644, 0o644]
