"""Right settings: levels, JSON, files, and the frozen values that come of them."""

from __future__ import annotations

import json
import time
from itertools import permutations
from pathlib import Path

import pytest

from delivery.model import Answering, Endpoint, Jitter, OnExhausted, RetryUnsafe, Signing, SigningKey
from supervisor.configuration import (
    Configuration,
    HttpListen,
    KafkaConnection,
    LogFormat,
    ProcessLimits,
    SaslMechanism,
    SecurityProtocol,
    Start,
)
from supervisor.settings import load
from supervisor.settings.table import table
from tests.unit.settings_environment import ENDPOINT, KEY, PROCESS, RIGHT, SECRET, faults_of, only_endpoint, without

TENANT = "DELIVERY_TENANTS__ACME__"
DEFAULTS = "DELIVERY_DEFAULTS__"


def test_what_is_not_set_has_the_defaults_of_the_frozen_values() -> None:
    assert load(RIGHT) == Configuration(
        kafka=KafkaConnection(bootstrap_servers="kafka:9092"),
        endpoints=(
            Endpoint(
                tenant="acme",
                name="billing",
                url="https://example.com/hooks",
                topics=frozenset({"orders", "invoices"}),
                secrets=(SigningKey(key=KEY),),
            ),
        ),
        redis_url="redis://redis:6379/0",
        tenants=("acme",),
    )


def test_the_nearest_level_wins_for_one_option_at_a_time() -> None:
    endpoint = only_endpoint(
        {
            **RIGHT,
            f"{DEFAULTS}RETRY__MAX_ATTEMPTS": "2",
            f"{DEFAULTS}RETRY__BASE_S": "1",
            f"{DEFAULTS}RETRY__JITTER": "full",
            f"{DEFAULTS}DEADLINE_S": "60",
            f"{TENANT}RETRY__MAX_ATTEMPTS": "3",
            f"{TENANT}RETRY__BASE_S": "2",
            f"{ENDPOINT}RETRY__MAX_ATTEMPTS": "4",
        }
    )
    assert (endpoint.retry.max_attempts, endpoint.retry.base_s, endpoint.retry.jitter) == (4, 2.0, Jitter.FULL)
    assert endpoint.deadline_s == 60.0


@pytest.mark.parametrize(
    ("name", "outer", "field", "unset"),
    [
        ("DEADLINE_S", "60", "deadline_s", None),
        ("HEADERS", '{"x-a": "1"}', "headers", ()),
        ("STATUSES", "404=retry", "statuses", {}),
        ("FORWARD_HEADERS", "ce_*", "forward_headers", ()),
        ("RETRY_UNSAFE", "401", "retry_unsafe", RetryUnsafe(statuses=frozenset(), unavailable=False)),
    ],
)
def test_none_unsets_what_is_set_further_out(name: str, outer: str, field: str, unset: object) -> None:
    assert getattr(only_endpoint({**RIGHT, DEFAULTS + name: outer}), field) != unset
    assert getattr(only_endpoint({**RIGHT, DEFAULTS + name: outer, ENDPOINT + name: "none"}), field) == unset


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        pytest.param(f"{ENDPOINT}TOPICS", " a , b ", id="CF-02-comma"),
        pytest.param(f"{ENDPOINT}TOPICS", '["a", "b"]', id="CF-02-json"),
        pytest.param(f"{TENANT}TOPICS", "a,b", id="CF-02-comma-of-a-tenant"),
        pytest.param(f"{DEFAULTS}TOPICS", '["a","b"]', id="CF-02-json-of-all"),
    ],
)
def test_lists_are_comma_lists_or_json_at_every_level(variable: str, value: str) -> None:
    assert only_endpoint({**without("TOPICS"), variable: value}).topics == {"a", "b"}


def test_lists_within_json_are_comma_lists_or_json_too() -> None:
    for topics in ("a,b", ["a", "b"], '["a", "b"]'):
        tenants = json.dumps({"acme": {"endpoints": {"billing": {"topics": topics}}}})
        assert only_endpoint({**without("TOPICS"), "DELIVERY_TENANTS": tenants}).topics == {"a", "b"}


@pytest.mark.parametrize("order", [pytest.param(order, id=f"CF-06-{order}") for order in permutations(range(3))])
def test_nested_variables_override_json_in_every_order(order: tuple[int, ...]) -> None:
    tenants = {"acme": {"timeout_s": 9, "endpoints": {"billing": {"url": "https://a.example/", "event_types": ["x"]}}}}
    variables = [
        ("DELIVERY_TENANTS", json.dumps(tenants)),
        (f"{TENANT}ENDPOINTS", json.dumps({"billing": {"url": "https://b.example/", "timeout_s": 7}})),
        (f"{ENDPOINT}URL", "https://c.example/"),
    ]
    endpoint = only_endpoint({**dict(variables[index] for index in order), **without("URL")})
    assert (endpoint.url, endpoint.timeout_s, endpoint.event_types) == ("https://c.example/", 7.0, ("x",))


def test_in_variables_an_underscore_stands_for_a_hyphen() -> None:
    environ = {name.replace("__ACME__", "__BIG_CO__"): value for name, value in RIGHT.items()}
    assert load(environ).tenants == ("big-co",)
    assert only_endpoint(environ).label == "big-co/billing"


def test_variables_may_be_in_lower_case() -> None:
    assert load({name.lower(): value for name, value in RIGHT.items()}) == load(RIGHT)


def test_a_tenant_without_endpoints_is_named_all_the_same() -> None:
    assert load({**RIGHT, "DELIVERY_TENANTS__ZED__TIMEOUT_S": "5"}).tenants == ("acme", "zed")


def test_every_option_reaches_the_frozen_endpoint() -> None:
    options = {
        "event_types": "order.*,invoice.paid",
        "headers": {"X-Token": "a b", "authorization": "Bearer x"},
        "forward_headers": "ce_*,traceparent",
        "enabled": False,
        "statuses": "404=retry, 409=delivered",
        "idempotent": False,
        "retry_unsafe": "409,503+Retry-After",
        "on_exhausted": "hold",
        "hold_max_s": 60,
        "timeout_s": 3,
        "max_age_s": 3600,
        "retry": {"schedule": "5s,5m,30m,2h", "min_429_s": 2},
        "halt": {"after": 3, "pause_s": 20},
        "allow_networks": " 10.1.2.3/16 , ::1",
        "allow_ports": 9999,
        "allow_http": True,
        "max_answer_bytes": 512,
    }
    tenants = json.dumps({"acme": {"endpoints": {"billing": options}}})
    endpoint = only_endpoint({**RIGHT, "DELIVERY_TENANTS": tenants})
    assert endpoint.event_types == ("order.*", "invoice.paid")
    assert endpoint.headers == (("x-token", "a b"), ("authorization", "Bearer x"))
    assert endpoint.forward_headers == ("ce_*", "traceparent")
    assert endpoint.enabled is False
    assert endpoint.statuses == {404: Answering.RETRY, 409: Answering.DELIVERED}
    assert (endpoint.idempotent, str(endpoint.retry_unsafe)) == (False, "409,503+Retry-After")
    assert (endpoint.on_exhausted, endpoint.hold_max_s, endpoint.max_age_s) == (OnExhausted.HOLD, 60.0, 3600.0)
    assert endpoint.retry.schedule_s == (5.0, 300.0, 1800.0, 7200.0)
    assert (endpoint.retry.max_attempts, endpoint.retry.min_429_s) == (5, 2.0)
    assert (endpoint.halt.after, endpoint.halt.pause_s) == (3, 20.0)
    assert endpoint.network.allow_networks == ("10.1.0.0/16", "::1/128")
    assert (endpoint.network.allow_ports, endpoint.network.allow_http) == (frozenset({9999}), True)
    assert (endpoint.connect_timeout_s, endpoint.timeout_s) == (3.0, 3.0), "connecting is a part of the attempt"
    assert endpoint.excerpt_bytes == 512, "no more can be kept than is read"


def test_a_schedule_and_a_number_of_attempts_exclude_each_other() -> None:
    environ = {**RIGHT, f"{TENANT}RETRY__MAX_ATTEMPTS": "3", f"{ENDPOINT}RETRY__SCHEDULE": "1s"}
    (fault,) = faults_of(environ)
    assert fault.startswith(f"{ENDPOINT}RETRY__SCHEDULE: cannot be together with RETRY__MAX_ATTEMPTS")
    endpoint = only_endpoint({**environ, f"{ENDPOINT}RETRY__MAX_ATTEMPTS": "none"})
    assert (endpoint.retry.max_attempts, endpoint.retry.schedule_s) == (2, (1.0,))


def test_the_process_has_its_settings() -> None:
    configuration = load(
        {
            **RIGHT,
            "DELIVERY_KAFKA__BOOTSTRAP_SERVERS": "a:9092, [::1]:9093",
            "DELIVERY_KAFKA__SECURITY_PROTOCOL": "sasl_ssl",
            "DELIVERY_KAFKA__SASL_MECHANISM": "SCRAM-SHA-512",
            "DELIVERY_KAFKA__SASL_PLAIN_USERNAME": "worker",
            "DELIVERY_KAFKA__SASL_PLAIN_PASSWORD": "p w",
            "DELIVERY_HTTP__LISTEN": "[::]:0",
            "DELIVERY_HTTP__TOKEN": "t0ken",
            "DELIVERY_TOPIC_PREFIX": "eu.hooks",
            "DELIVERY_START": "earliest",
            "DELIVERY_SWEEP_S": "1.5",
            "DELIVERY_BROADCAST_TOPICS": "orders",
            "DELIVERY_LOG__FORMAT": "json",
            "DELIVERY_OWN_TOPICS__CREATE": "true",
        }
    )
    assert configuration.kafka == KafkaConnection(
        bootstrap_servers="a:9092,[::1]:9093",
        security_protocol=SecurityProtocol.SASL_SSL,
        sasl_mechanism=SaslMechanism.SCRAM_SHA_512,
        sasl_plain_username="worker",
        sasl_plain_password="p w",
    )
    assert configuration.http == HttpListen(host="::", port=0, token="t0ken")
    assert (configuration.prefix, configuration.start) == ("eu.hooks", Start.EARLIEST)
    assert configuration.process == ProcessLimits(sweep_s=1.5)
    assert configuration.broadcast_topics == {"orders"}
    assert configuration.log.format is LogFormat.JSON
    assert configuration.own_topics.create is True
    assert configuration.warnings == ()


def test_what_is_taken_and_seems_wrong_is_warned_of() -> None:
    configuration = load(
        {
            **RIGHT,
            "DELIVERY_REDIS__URL": "rediss://:pass@redis:6380/1",
            "DELIVERY_BROADCAST_TOPICS": "oders",
            "DELIVERY_KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "DELIVERY_KAFKA__SASL_PLAIN_USERNAME": "worker",
            "DELIVERY_KAFKA__SASL_PLAIN_PASSWORD": "pass",
        }
    )
    assert configuration.redis_url == "rediss://:pass@redis:6380/1"
    assert configuration.warnings == (
        "DELIVERY_KAFKA__SECURITY_PROTOCOL: the password goes over the network in clear text; SASL_SSL encrypts it",
        "DELIVERY_BROADCAST_TOPICS: no endpoint has oders among its topics",
    )
    assert "pass@" not in repr(configuration)


def test_nothing_secret_is_in_the_representation() -> None:
    environ = {
        **RIGHT,
        f"{ENDPOINT}URL": "https://example.com/path-LEAK?query=LEAK",
        f"{ENDPOINT}HEADERS": '{"authorization": "Bearer LEAK"}',
        "DELIVERY_HTTP__TOKEN": "LEAK",
        "DELIVERY_REDIS__URL": "redis://:LEAK@redis",
        "DELIVERY_KAFKA__SECURITY_PROTOCOL": "SASL_SSL",
        "DELIVERY_KAFKA__SASL_PLAIN_USERNAME": "worker",
        "DELIVERY_KAFKA__SASL_PLAIN_PASSWORD": "LEAK",
    }
    shown = repr(load(environ))
    assert "LEAK" not in shown
    assert repr(KEY)[2:-1] not in shown


def test_signing_none_needs_no_secret() -> None:
    endpoint = only_endpoint({**without("SECRETS"), f"{ENDPOINT}SIGNING": "none"})
    assert (endpoint.signing, endpoint.secrets) == (Signing.NONE, ())


def test_a_thousand_endpoints_are_read_from_a_file_in_two_seconds(tmp_path: Path) -> None:
    endpoint = {"url": "https://example.com/h", "topics": ["a"], "secrets": SECRET, "retry": {"max_attempts": 3}}
    tenants = {f"t{n}": {"endpoints": {f"e{m}": endpoint for m in range(100)}} for n in range(10)}
    file = tmp_path / "tenants.json"
    file.write_text(json.dumps(tenants))
    began = time.process_time()
    configuration = load({**PROCESS, "DELIVERY_TENANTS_FILE": str(file)})
    assert time.process_time() - began < 2
    assert len(configuration.endpoints) == 1_000


def test_a_fault_in_the_file_of_tenants_names_its_place(tmp_path: Path) -> None:
    file = tmp_path / "tenants.json"
    file.write_text('{"acme": {"endpoints": {"billing": {"timeout_s": 0}}}}')
    (fault,) = faults_of({**RIGHT, "DELIVERY_TENANTS_FILE": str(file)})
    assert fault.startswith("DELIVERY_TENANTS_FILE: acme.endpoints.billing.timeout_s: expected seconds")


def test_the_table_has_a_row_for_every_setting() -> None:
    lines = table().splitlines()
    for name in ("DELIVERY_KAFKA__BOOTSTRAP_SERVERS", "DELIVERY_SWEEP_S", "URL", "RETRY__SCHEDULE", "QUOTA__WINDOW_S"):
        assert any(line.startswith(f"| `{name}` |") for line in lines), name
    assert any(line.startswith("| `SECRETS`, `SECRETS_FILE` | required |") for line in lines)
    assert all(line.count(" | ") == 3 for line in lines if line.startswith("| "))
