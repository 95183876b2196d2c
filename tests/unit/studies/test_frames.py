"""Every answer gives its tables as pandas frames."""

import pytest

from tangram_sim.errors import UnknownNameError
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.studies import api
from tangram_sim.training.job import Job


def test_a_plan_is_a_table_of_its_stages_pipelines_and_kinds() -> None:
    hwdb = Hwdb.load()
    model, cluster = load_model("bert-large"), load_cluster("azure-c1-t4x4-v100x4", hwdb)
    found = api.estimate(model, cluster, Job(8, 512, "fp16"), Uniform(tp=2, pp=4), hwdb=hwdb)
    frame = found.to_frame()
    assert list(frame["pipeline"]) == [0, 0, 0, 0]
    assert frame["forward_s"].tolist() == [stage.forward_s for stage in found.document.stages]
    assert frame["gpus"].sum() == found.document.gpus_used
    assert found.document.to_frame("gpu_kinds")["gpu"].tolist() == [k.gpu for k in found.document.gpu_kinds]
    with pytest.raises(UnknownNameError, match="stages"):
        found.document.to_frame("stage")
