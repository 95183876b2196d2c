"""Importing this module loads libraries, compiled code and hardware tables before the first request.

Processes that answer requests are forked from one that has imported it.
"""

import gc

from tangram_sim.hwdb import Hwdb
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.studies import api, explain, planfile
from tangram_sim.training.job import Job

HWDB = Hwdb.load()
RESULT = api.estimate("gpt3-125m", "azure-c1", Job(64, 512), Uniform(pp=2), hwdb=HWDB)
PARTS = (explain, planfile)  # loaded with what they need

gc.collect()
gc.freeze()  # copies share the memory of what is here as long as the collector leaves it alone
