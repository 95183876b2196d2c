"""Writes the records anew; look at the difference before committing it."""

from tests.records import FOLDER, rounded, text_of
from tests.unit.cost.test_recorded_collectives import recorded as collectives
from tests.unit.export.test_post_training import exports
from tests.unit.hwdb.test_recorded_hwdb import recorded as hwdb
from tests.unit.nouns.test_recorded_nouns import recorded as nouns
from tests.unit.planners.test_recorded_fleets import fleets
from tests.unit.planners.test_recorded_searches import searches
from tests.unit.post_training.test_recorded_placements import placements
from tests.unit.serving.test_recorded_services import services
from tests.unit.topology.test_recorded_paths import recorded as paths
from tests.unit.training.test_recorded_prices import prices

RECORDS = {
    "collectives": collectives,
    "fleets": fleets,
    "hwdb": hwdb,
    "nouns": nouns,
    "paths": paths,
    "placements": placements,
    "prices": prices,
    "rl_exports": exports,
    "searches": searches,
    "services": services,
}

for name, cases in RECORDS.items():
    figures = {case: rounded(make()) for case, make in cases().items()}
    (FOLDER / f"{name}.json").write_text(text_of(figures), encoding="utf-8")
