"""The formats of `tangram serve export` by name; every file is read back before it is handed out."""

from collections.abc import Mapping

from tangram_sim.errors import TangramError, unknown_name
from tangram_sim.export.formats import Exported
from tangram_sim.export.service import kubernetes, launch_script, router_weights
from tangram_sim.export.service.commands import ENGINES
from tangram_sim.export.service.groups import ServiceLaunch
from tangram_sim.hwdb.models import hub_name

KUBERNETES = "kubernetes"
FORMATS = (*ENGINES, KUBERNETES)


def export_service(service: ServiceLaunch, to: str, weights: Mapping[str, str]) -> Exported:
    """The files that start a service; `weights` maps each model to the place of its checkpoint.

    Raises UnknownNameError for an unknown format or model, CannotExportError for what the format cannot
    express.
    """
    if to not in FORMATS:
        raise unknown_name("format", to, FORMATS)
    models = tuple(dict.fromkeys(group.model for group in service.groups))
    guessed = {model: hub_name(model) for model in models if model not in weights and hub_name(model)}
    weights = guessed | dict(weights)
    for name in weights:
        if name not in models:
            raise unknown_name("model of `weights=`", name, models)
    if to == KUBERNETES:
        name = kubernetes.FILE
        text, notes = kubernetes.write(service, weights)
        found = kubernetes.read(text, service.engine)
    else:
        name = launch_script.FILE
        text, notes = launch_script.write(service, to, weights)
        found = launch_script.read(text, to, service.groups)
    routed = router_weights.write(service)
    if found != service.groups or router_weights.read(routed) != (service.shares, service.types):
        raise TangramError(f"{name} reads back as another plan; this is a fault of the program: report it")
    if service.engine != service.planned_for:
        words = (
            f"planned for {service.planned_for}: limits here are {service.engine}'s defaults, speeds differ"
        )
        notes.insert(0, words)
    notes = list(dict.fromkeys([*service.notes, *notes]))
    limits = {
        group.model: f"{group.context_tokens} tokens" for group in service.groups if group.context_tokens
    }
    if limits:
        one = len({*limits.values()}) == 1
        longest = ", ".join(
            [*limits.values()][:1] if one else [f"{limits[name]} ({name})" for name in limits]
        )
        notes.append(f"requests longer than {longest} are refused: twice the plan's longest type")
    unplaced = [model for model in models if model not in weights]
    if unplaced:
        notes.append(
            f"weights are looked for under {', '.join(unplaced)}: give `weights=` MODEL=PATH_OR_HUB_NAME"
        )
    if guessed:
        notes.append(
            f"weights are those of {', '.join(guessed.values())} on the hub: give `weights=` "
            "MODEL=PATH_OR_HUB_NAME for others"
        )
    return Exported({name: text, router_weights.FILE: routed}, tuple(notes))
