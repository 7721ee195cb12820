"""What is under deploy/ fits the program: settings, ports, times, metrics. `make lint` asks tools that know more."""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from delivery.model import DeadLetterReason, FanoutResult, HaltReason
from supervisor.configuration import Configuration, OwnTopics, ProcessLimits
from supervisor.settings import load
from supervisor.view import LoopStateName
from tests.unit.settings_environment import SECRET, is_setting

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
OPERATIONS = ROOT / "docs" / "operations.md"
UID = 10001
PORT = 8080
# Beyond DRAIN_S: the last commit, the hand-over (2 s), leaving the groups (5 s), and a slow machine.
MARGIN_S = 15
# What stands in a secret's file, by the file's name; else a signing secret.
CONTENT = {"redis-url": "redis://:word@redis:6379/0", "kafka-password": "word"}
SECRETS = re.compile(r"/run/(?:secrets|credentials)/[\w./-]+")


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


@functools.cache
def yaml_of(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def worker() -> dict[str, Any]:
    found: dict[str, Any] = yaml_of("compose.yaml")["services"]["worker"]
    return found


def pod() -> dict[str, Any]:
    found: dict[str, Any] = yaml_of("kubernetes/deployment.yaml")["spec"]["template"]["spec"]
    return found


def container() -> dict[str, Any]:
    (found,) = pod()["containers"]
    return dict(found)


def variables(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def unit() -> dict[str, list[str]]:
    """The unit's directives in order; one that is given twice adds to the first."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "systemd" / "delivery.service").read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def with_files(text: str, folder: Path) -> str:
    """Put a folder of our own in the place of those that secrets are mounted at, and the files into it."""

    def placed(match: re.Match[str]) -> str:
        name = Path(match[0]).name.removeprefix("secret_")
        (folder / name).write_text(CONTENT.get(name, SECRET))
        return str(folder / name)

    return SECRETS.sub(placed, text)


def loaded(environ: Mapping[str, str], folder: Path) -> Configuration:
    """As the program would. Raises SettingsInvalid."""
    return load({name: with_files(value, folder) for name, value in environ.items()})


def kubernetes_settings(folder: Path) -> Configuration:
    tenants = folder / "tenants.json"
    tenants.write_text(with_files((DEPLOY / "kubernetes" / "tenants.json").read_text(), folder))
    environ = variables((DEPLOY / "kubernetes" / "settings.env").read_text())
    (mount,) = [mount for mount in container()["volumeMounts"] if mount["name"] == "tenants"]
    assert environ["DELIVERY_TENANTS_FILE"] == f"{mount['mountPath']}/tenants.json"
    return loaded({**environ, "DELIVERY_TENANTS_FILE": str(tenants)}, folder)


def test_the_settings_of_the_compose_file_are_taken_by_the_program(tmp_path: Path) -> None:
    configuration = loaded(worker()["environment"], tmp_path)
    assert [endpoint.name for endpoint in configuration.endpoints] == ["billing", "broken"]
    assert configuration.http.port == PORT


def test_the_settings_of_the_kubernetes_manifests_are_taken_by_the_program(tmp_path: Path) -> None:
    configuration = kubernetes_settings(tmp_path)
    assert [endpoint.name for endpoint in configuration.endpoints] == ["billing"]
    assert configuration.redis_url == CONTENT["redis-url"]
    assert configuration.kafka.sasl_plain_password == CONTENT["kafka-password"]
    assert (configuration.http.host, configuration.http.port) == ("0.0.0.0", PORT)


def test_the_settings_of_the_systemd_unit_are_taken_by_the_program(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "delivery.env").read_text()
    configuration = loaded(variables(text), tmp_path)
    assert [endpoint.name for endpoint in configuration.endpoints] == ["billing"]
    assert configuration.redis_url == CONTENT["redis-url"]
    # As systemd names what it loads from a folder: the credential's id, and the file's name.
    prefix, _, folder = unit()["LoadCredential"][0].partition(":")
    assert folder == "/etc/delivery/secrets"
    assert all(path.startswith(f"/run/credentials/delivery.service/{prefix}_") for path in SECRETS.findall(text))


def test_every_setting_that_is_named_under_deploy_exists() -> None:
    files = [path for path in DEPLOY.rglob("*") if path.is_file() and "secrets" not in path.parts]
    named = {name for path in files for name in re.findall(r"\bDELIVERY_[A-Z0-9_]*[A-Z0-9]", path.read_text())}
    # The variable of a Service, which the comment on the Service's name is about.
    assert {name for name in named - {"DELIVERY_PORT"} if not is_setting(name)} == set()
    assert "DELIVERY_DRAIN_S" in named


def given_settings() -> Iterator[tuple[str, str]]:
    yield from worker()["environment"].items()
    yield from variables((DEPLOY / "kubernetes" / "settings.env").read_text()).items()
    yield from variables((DEPLOY / "systemd" / "delivery.env").read_text()).items()
    tenants = json.loads((DEPLOY / "kubernetes" / "tenants.json").read_text())
    yield from ((name, str(value)) for tenant in tenants.values() for name, value in tenant.items())


def test_secrets_are_given_as_files_only() -> None:
    """A URL without a password in it is none."""
    secret = re.compile(r"(?:PASSWORD|TOKEN|SECRETS|HEADERS|PROXY)$", re.IGNORECASE)
    assert [name for name, value in given_settings() if secret.search(name) or "whsec_" in value or "@" in value] == []
    files = [(name, value) for name, value in given_settings() if name.lower().endswith("_file")]
    wrong = [name for name, value in files if not (SECRETS.fullmatch(value) or value.startswith("/etc/delivery/"))]
    assert len(files) > len(wrong) == 0


def test_every_secret_of_the_compose_file_is_one_that_is_mounted() -> None:
    files = {Path(value).name for name, value in worker()["environment"].items() if name.endswith("_FILE")}
    assert files == set(worker()["secrets"]) == set(yaml_of("compose.yaml")["secrets"])


def test_secrets_are_mounted_where_the_settings_look_for_them() -> None:
    (mount,) = [mount for mount in container()["volumeMounts"] if mount["name"] == "secrets"]
    text = (DEPLOY / "kubernetes" / "settings.env").read_text() + (DEPLOY / "kubernetes" / "tenants.json").read_text()
    assert {str(Path(path).parent) for path in SECRETS.findall(text)} == {mount["mountPath"]}
    # A file that is mounted by subPath never changes, and SECRETS_FILE is to be read again.
    assert "subPath" not in mount


@pytest.mark.parametrize(
    "grace_s",
    [
        pytest.param(lambda: int(worker()["stop_grace_period"].removesuffix("s")), id="compose"),
        pytest.param(lambda: pod()["terminationGracePeriodSeconds"], id="kubernetes"),
        pytest.param(lambda: int(unit()["TimeoutStopSec"][0]), id="systemd"),
    ],
)
def test_nobody_is_killed_before_the_drain_is_over(grace_s: Any) -> None:
    assert grace_s() >= ProcessLimits().drain_s + MARGIN_S


def test_compose_has_three_workers_that_wait_for_kafka_and_redis() -> None:
    services = yaml_of("compose.yaml")["services"]
    assert worker()["deploy"]["replicas"] == 3
    assert worker()["depends_on"] == {name: {"condition": "service_healthy"} for name in ("kafka", "redis")}
    assert all("healthcheck" in services[name] and services[name]["volumes"] for name in ("kafka", "redis"))
    assert re.fullmatch(r"apache/kafka:4\.\d+\.\d+", services["kafka"]["image"])
    assert f"127.0.0.1:{PORT}/readyz" in worker()["healthcheck"]["test"][-1]
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service.get("ports", ()))


def test_workers_in_compose_can_write_nothing_and_are_not_root() -> None:
    for name in ("worker", "receiver"):
        service = yaml_of("compose.yaml")["services"][name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "user" not in service


def test_the_kustomization_names_every_manifest_and_no_other_file() -> None:
    made = yaml_of("kubernetes/kustomization.yaml")
    generated = [name for one in made["configMapGenerator"] for name in (*one.get("envs", ()), *one.get("files", ()))]
    named = [*made["resources"], *generated, "kustomization.yaml"]
    assert sorted(named) == sorted(path.name for path in (DEPLOY / "kubernetes").iterdir())
    assert {one["name"] for one in made["configMapGenerator"]} == {
        container()["envFrom"][0]["configMapRef"]["name"],
        next(volume["configMap"]["name"] for volume in pod()["volumes"] if "configMap" in volume),
    }


def test_three_replicas_are_replaced_one_by_one() -> None:
    spec = yaml_of("kubernetes/deployment.yaml")["spec"]
    assert spec["replicas"] == 3
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 1}}
    assert yaml_of("kubernetes/disruption-budget.yaml")["spec"]["maxUnavailable"] == 1


def test_the_pod_asks_for_no_right_that_it_does_not_need() -> None:
    assert pod()["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": UID,
        "runAsGroup": UID,
        "fsGroup": UID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod()["automountServiceAccountToken"] is False
    assert pod()["enableServiceLinks"] is False


def test_probes_metrics_and_service_are_at_the_port_that_the_worker_listens_on(tmp_path: Path) -> None:
    listen = kubernetes_settings(tmp_path).http.port
    assert container()["ports"] == [{"name": "http", "containerPort": listen}]
    probes = {name: container()[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe["port"] for probe in probes.values()} == {"http"}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }
    annotations = yaml_of("kubernetes/deployment.yaml")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(listen)
    service = yaml_of("kubernetes/service.yaml")
    assert service["spec"]["ports"] == [{"name": "http", "port": listen, "targetPort": "http"}]
    # Its variables must not begin like ours.
    assert not service["metadata"]["name"].startswith("delivery")


def test_the_unit_stops_one_process_and_never_tries_wrong_settings_again() -> None:
    """With `run --processes` a signal to the whole group would reach each worker twice and cut off its requests."""
    directives = unit()
    assert directives["Type"] == ["exec"]
    assert directives["KillMode"] == ["mixed"]
    assert directives["Restart"] == ["on-failure"]
    assert directives["RestartPreventExitStatus"] == ["2"]
    assert directives["ExecStart"] == ["/opt/delivery/bin/delivery run"]


def test_the_unit_takes_from_the_service_what_it_does_not_need() -> None:
    directives = unit()
    for name in (
        "DynamicUser", "NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices", "MemoryDenyWriteExecute",
        "RestrictNamespaces", "LockPersonality",
    ):  # fmt: skip
        assert directives[name] == ["yes"], name
    assert directives["ProtectSystem"] == ["strict"]
    assert directives["CapabilityBoundingSet"] == [""]
    assert directives["SystemCallFilter"] == ["@system-service", "~@privileged @resources"]
    # Those that the network needs, and asyncio's pair of sockets.
    assert directives["RestrictAddressFamilies"] == ["AF_INET AF_INET6 AF_UNIX"]


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's, comments and continuations taken out."""
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    return [(name, value.strip()) for name, _, value in (line.partition(" ") for line in text.splitlines() if line)]


def test_the_image_starts_a_worker_without_a_shell_and_without_root() -> None:
    stages = [index for index, (name, _) in enumerate(instructions()) if name == "FROM"]
    last = dict(instructions()[stages[-1] :])
    assert len(stages) == 2
    assert json.loads(last["ENTRYPOINT"]) == [next(iter(project()["scripts"]))]
    assert json.loads(last["CMD"]) == ["run"]
    assert last["USER"] == f"{UID}:{UID}"
    assert last["EXPOSE"] == str(PORT)
    assert f"DELIVERY_HTTP__LISTEN=0.0.0.0:{PORT}" in last["ENV"].split()


def test_the_image_is_built_on_a_python_that_the_project_takes() -> None:
    bases = {value.split()[0] for name, value in instructions() if name == "FROM"}
    (minor,) = {match[1] for base in bases if (match := re.fullmatch(r"python:3\.(\d+)-slim-[a-z]+", base))}
    assert len(bases) == 1
    assert f"Programming Language :: Python :: 3.{minor}" in project()["classifiers"]


def test_the_image_is_built_of_what_is_sent_to_the_builder() -> None:
    sent = {line[1:].rstrip("/") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source for name, value in instructions() if name == "COPY" and "--from" not in value
        for source in value.split()[:-1]
    }  # fmt: skip
    assert copied == sent
    assert all((ROOT / name).exists() for name in sent)
    # What the wheel is built of: pyproject.toml, and what it names.
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", project()["readme"], *project()["license-files"], *packages["packages"]}
    assert needed == sent


def test_everywhere_the_image_has_the_projects_version() -> None:
    tags = [service["image"] for service in yaml_of("compose.yaml")["services"].values() if "build" in service]
    tags += [f"{one['name']}:{one['newTag']}" for one in yaml_of("kubernetes/kustomization.yaml")["images"]]
    tags += re.findall(r"webhook-delivery:[\w.]+", OPERATIONS.read_text() + (DEPLOY / "Dockerfile").read_text())
    assert set(tags) == {f"{project()['name']}:{project()['version']}"}
    assert container()["image"] == project()["name"]


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml_of("prometheus/alerts.yaml")["groups"] for rule in group["rules"]]


def recorded() -> list[dict[str, Any]]:
    return [rule for group in yaml_of("prometheus/recording.yaml")["groups"] for rule in group["rules"]]


def selectors(expression: Any) -> Iterator[Any]:
    """Every selector of a series within an expression."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
    elif isinstance(expression, promql_parser.MatrixSelector):
        yield expression.vector_selector
    else:
        for name in ("expr", "lhs", "rhs"):
            if (part := getattr(expression, name, None)) is not None:
                yield from selectors(part)
        for part in getattr(expression, "args", ()):
            yield from selectors(part)


def matched(metric: str, label: str) -> set[str]:
    """What the rules match of a metric's label."""
    found: set[str] = set()
    for rule in rules():
        for selector in selectors(promql_parser.parse(rule["expr"])):
            if selector.name == metric:
                for matcher in selector.matchers.matchers:
                    found |= set(matcher.value.split("|")) if matcher.name == label else set()
    return found


def test_rules_ask_only_for_metrics_that_are_described() -> None:
    text = OPERATIONS.read_text()
    described = set(re.findall(r"^\| `(delivery_\w+)` \|", text, re.MULTILINE))
    asking = [*rules(), *recorded()]
    asked = {selector.name for rule in asking for selector in selectors(promql_parser.parse(rule["expr"]))}
    assert len(asked) > 5
    assert asked - described == set()


def test_alerts_match_values_that_labels_can_have() -> None:
    halts = {reason.value for reason in HaltReason}
    patterns = matched("delivery_halts_total", "reason")
    assert all(any(re.fullmatch(pattern, reason) for reason in halts) for pattern in patterns)
    assert matched("delivery_loop_state", "state") <= {state.value for state in LoopStateName}
    assert matched("delivery_fanout_events_total", "result") <= {result.value for result in FanoutResult}
    assert matched("delivery_kafka_member", "group") == {"delivery", "fanout"}


def test_every_dead_letter_that_nobody_ordered_raises_an_alert() -> None:
    ordered = {DeadLetterReason.CANCELLED.value, DeadLetterReason.DRAINED.value}
    reasons = {reason.value for reason in DeadLetterReason}
    assert matched("delivery_dead_letters_total", "reason") == reasons - ordered


def test_a_backlog_alarms_at_half_of_the_queues_retention() -> None:
    (rule,) = [rule for rule in rules() if rule["alert"] == "DeliveryBacklogOld"]
    assert float(rule["expr"].partition(">")[2]) == OwnTopics().queue_retention_s / 2


def test_a_dead_letter_alarms_long_before_its_topic_forgets_it() -> None:
    (rule,) = [rule for rule in rules() if rule["alert"] == "DeliveryDeadLettersOld"]
    assert float(rule["expr"].partition(">")[2]) == OwnTopics().dead_letter_retention_s / 2


def test_every_alert_says_how_bad_it_is_and_has_its_advice_and_its_test() -> None:
    advised = re.findall(r"^\| `(Delivery\w+)` \|", OPERATIONS.read_text(), re.MULTILINE)
    names = [rule["alert"] for rule in rules()]
    assert sorted(advised) == sorted(names)
    assert {rule["labels"]["severity"] for rule in rules()} == {"critical", "warning"}
    assert all(rule["annotations"].keys() == {"summary", "description"} for rule in rules())
    quiet, firing = yaml_of("prometheus/alerts.test.yaml")["tests"]
    assert {test["alertname"] for test in quiet["alert_rule_test"]} == set(names)
    (fired,) = firing["promql_expr_test"]
    assert all(any(f'"{name}"' in sample["labels"] for sample in fired["exp_samples"]) for name in names)


def test_what_is_recorded_is_described_and_tested() -> None:
    names = [rule["record"] for rule in recorded()]
    described = re.findall(r"^\| `(\w+:\w+:\w+)` \|", OPERATIONS.read_text(), re.MULTILINE)
    assert described == names
    (test,) = yaml_of("prometheus/recording.test.yaml")["tests"]
    assert all(any(name in case["expr"] for case in test["promql_expr_test"]) for name in names)


def test_retries_alarm_when_they_pass_a_twentieth_of_the_attempts() -> None:
    (rule,) = [rule for rule in rules() if rule["alert"] == "DeliveryRetriesShare"]
    share, _, limit = rule["expr"].partition(">")
    assert float(limit) == 0.05
    assert [selector.name for selector in selectors(promql_parser.parse(share))] == [
        "delivery_retries_total",
        "delivery_attempts_total",
    ]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana/delivery.json").read_text())
    return found


def asked_by_the_dashboard() -> Iterator[Any]:
    """The selectors of all its panels, with any value for what its reader chooses."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "5m")
            yield from selectors(promql_parser.parse(text))


def test_the_dashboard_asks_only_for_metrics_that_are_described() -> None:
    described = set(re.findall(r"^\| `(delivery_\w+)` \|", OPERATIONS.read_text(), re.MULTILINE))
    described |= {rule["record"] for rule in recorded()} | {
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
    }
    asked = {selector.name.removesuffix("_bucket") for selector in asked_by_the_dashboard()}
    assert asked <= described
    assert len(asked) > 15
    for chosen in dashboard()["templating"]["list"][1:]:
        (metric,) = re.findall(r"label_values\((\w+)", chosen["definition"])
        assert metric in described


def test_the_dashboard_matches_values_that_labels_can_have_and_what_its_reader_chooses() -> None:
    known = {"state": {state.value for state in LoopStateName}, "group": {"delivery", "fanout"}}
    known |= {one["name"]: {f"${one['name']}"} for one in dashboard()["templating"]["list"]}
    for selector in asked_by_the_dashboard():
        for matcher in selector.matchers.matchers:
            assert set(matcher.value.split("|")) <= known[matcher.name], (selector.name, matcher.name)


def test_the_dashboards_panels_say_what_they_show_and_lie_beside_each_other() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    covered: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["type"] == "row" or panel["description"]
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & covered
        covered |= cells
