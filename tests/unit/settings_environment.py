"""An environment that is right, and what `load` says of others."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from delivery.model import Endpoint
from supervisor.settings import SettingsInvalid, load
from supervisor.settings.environment import Environment
from supervisor.settings.names import DELIMITER, PREFIX
from supervisor.settings.schema import Group, Leaf, Named, Node, group_of

KEY = bytes(range(24))
SECRET = "whsec_" + base64.b64encode(KEY).decode()
ENDPOINT = "DELIVERY_TENANTS__ACME__ENDPOINTS__BILLING__"
PROCESS = {"DELIVERY_KAFKA__BOOTSTRAP_SERVERS": "kafka:9092", "DELIVERY_REDIS__URL": "redis://redis:6379/0"}
RIGHT = {
    **PROCESS,
    f"{ENDPOINT}URL": "https://example.com/hooks",
    f"{ENDPOINT}TOPICS": "orders,invoices",
    f"{ENDPOINT}SECRETS": SECRET,
}


def without(*names: str) -> dict[str, str]:
    """The right environment, less the variables of these names, those of the endpoint without its prefix."""
    return {variable: value for variable, value in RIGHT.items() if variable.removeprefix(ENDPOINT) not in names}


def faults_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What is wrong with an environment; nothing when it is right."""
    try:
        load(environ)
    except SettingsInvalid as error:
        return error.faults
    return ()


def only_endpoint(environ: Mapping[str, str]) -> Endpoint:
    """The one endpoint of an environment."""
    (endpoint,) = load(environ).endpoints
    return endpoint


def is_setting(variable: str) -> bool:
    """Whether a variable under the prefix is one, or the beginning of some (`DELIVERY_OWN_TOPICS__…`)."""
    return _leads_somewhere(group_of(Environment), variable.removeprefix(PREFIX).split(DELIMITER))


def _leads_somewhere(node: Node, parts: list[str]) -> bool:
    if not parts:
        return True
    match node:
        case Named():
            return _leads_somewhere(node.child, parts[1:])
        case Group():
            found = node.find(parts[0].lower())
            return found is not None and (not parts[1:] if found[2] else _leads_somewhere(found[1], parts[1:]))
        case Leaf():
            return False
