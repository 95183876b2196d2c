"""Rewrites the golden plans; look at the difference before committing it."""

import json

from tests.golden import CASES, FOLDER, found

for case in CASES:
    (FOLDER / f"{case}.json").write_text(json.dumps(found(case), indent=1) + "\n", encoding="utf-8")
