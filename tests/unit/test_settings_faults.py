"""Wrong settings: one line each, with the variable and what is expected, and never with the value of a secret."""

from __future__ import annotations

import json
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.settings import SettingsInvalid, load
from tests.unit.settings_environment import ENDPOINT, PROCESS, RIGHT, SECRET, faults_of, without

LEAK = "sUpErSeCrEt"


def test_the_right_environment_has_no_fault() -> None:
    assert faults_of(RIGHT) == ()


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        pytest.param("DELIVERY_TENANTS", "", "empty value", id="CF-01-json"),
        pytest.param(f"{ENDPOINT}TOPICS", "", "empty value", id="CF-01-list"),
        pytest.param(f"{ENDPOINT}TIMEOUT_S", " ", "empty value", id="CF-01-number"),
        pytest.param(f"{ENDPOINT}SECRETS", "", "empty value", id="SG-03-empty"),
        pytest.param(f"{ENDPOINT}TOPICS", "'[\"a\"]'", "remove them", id="CF-02-quotes-kept"),
        pytest.param(f"{ENDPOINT}TOPICS", '["a"', "no valid JSON at line 1, column 5", id="CF-02-half-json"),
        pytest.param(f"{ENDPOINT}TOPICS", "a,,b", "without empty entries", id="CF-02-empty-entry"),
        pytest.param(f"{ENDPOINT}TIMEOUT_S", "nan", "expected seconds from 0.05 to 3,600", id="CF-09-nan"),
        pytest.param(f"{ENDPOINT}TIMEOUT_S", "inf", "expected seconds", id="CF-09-inf"),
        pytest.param(f"{ENDPOINT}TIMEOUT_S", "-1", "expected seconds", id="CF-09-negative"),
        pytest.param(f"{ENDPOINT}TIMEOUT_S", "0", "expected seconds", id="CF-09-zero"),
        pytest.param(f"{ENDPOINT}TIMEOUT_S", "15s", "expected seconds", id="CF-09-unit"),
        pytest.param(f"{ENDPOINT}RETRY__MAX_ATTEMPTS", "0", "a whole number from 1 to 1,000", id="CF-09-no-attempts"),
        pytest.param(f"{ENDPOINT}RETRY__MAX_ATTEMPTS", "-1", "a whole number", id="CF-09-negative-attempts"),
        pytest.param(f"{ENDPOINT}RETRY__MAX_ATTEMPTS", "2.5", "a whole number", id="CF-09-half-an-attempt"),
        pytest.param(f"{ENDPOINT}RETRY__MAX_ATTEMPTS", "٣", "a whole number", id="CF-09-other-digits"),
        pytest.param("DELIVERY_SWEEP_S", "0", "expected seconds from 0.1 to 300", id="CF-09-no-sweep"),
        pytest.param("DELIVERY_MAX_POLL_INTERVAL_S", "29", "must not be below 30", id="CF-09-poll-interval"),
        pytest.param(f"{ENDPOINT}CONNECT_TIMEOUT_S", "16", "must not be above TIMEOUT_S (15)", id="CF-09-connect"),
        pytest.param(f"{ENDPOINT}HALT__PAUSE_S", "600", "must not be above HALT__MAX_S (300)", id="CF-09-pause"),
        pytest.param(f"{ENDPOINT}MAX_EVENT_BYTES", "2097152", "must not be above 2,031,616", id="CF-09-event-size"),
        pytest.param("DELIVERY_SESSION_TIMEOUT_S", "5", "expected seconds from 6 to 300", id="session"),
        pytest.param("DELIVERY_OWN_TOPICS__REPLICATION_FACTOR", "1", "must not be below 2", id="replicas"),
        pytest.param("DELIVERY_BUFFER_BYTES", "1048576", "must not be below 2,097,152", id="buffer"),
        pytest.param(f"{ENDPOINT}ENABLED", "yes", "expected true or false", id="boolean"),
        pytest.param(f"{ENDPOINT}ON_EXHAUSTED", "drop", "expected throttled or dead_letter or hold", id="choice"),
        pytest.param(f"{ENDPOINT}RETRY__SCHEDULE", "5s,5x", "waits like 5s,5m,30m,2h", id="schedule"),
        pytest.param(f"{ENDPOINT}RETRY__SCHEDULE", "0s", "each from 1ms to 31d", id="schedule-zero"),
        pytest.param(f"{ENDPOINT}STATUSES", "404=again", "statuses from 300 to 599", id="status-meaning"),
        pytest.param(f"{ENDPOINT}STATUSES", "202=rejected", "2xx is fixed", id="status-2xx"),
        pytest.param(f"{ENDPOINT}STATUSES", "404=retry,404=rejected", "each once", id="status-twice"),
        pytest.param(f"{ENDPOINT}IDEMPOTENT", "no", "expected true or false", id="idempotent"),
        pytest.param(f"{ENDPOINT}RETRY_UNSAFE", "200", "statuses from 300 to 599", id="unsafe-2xx"),
        pytest.param(f"{ENDPOINT}RETRY_UNSAFE", "429+Retry-After", "or none", id="unsafe-condition"),
        pytest.param(f"{ENDPOINT}RETRY_UNSAFE", "401,none", "or none", id="unsafe-none-beside-others"),
        pytest.param(f"{ENDPOINT}RETRY_UNSAFE", "401,,403", "without empty entries", id="unsafe-empty-entry"),
        pytest.param(f"{ENDPOINT}TOPICS", "orders.*,a b", "names of Kafka topics", id="topic-pattern"),
        pytest.param(f"{ENDPOINT}TOPICS", "__consumer_offsets", "none of Kafka's own", id="topic-internal"),
        pytest.param(f"{ENDPOINT}TOPICS", "webhooks.acme.dead-letters", "are our own", id="topic-of-ours"),
        pytest.param("DELIVERY_TOPIC_PREFIX", "a..b", "single dots", id="prefix"),
        pytest.param("DELIVERY_TOPIC_PREFIX", "p" * 231, "a shorter prefix", id="prefix-too-long"),
        pytest.param(f"{ENDPOINT}ALLOW_PORTS", "0", "ports from 1 to 65535", id="port"),
        pytest.param(f"{ENDPOINT}CA_FILE", "/nowhere/ca.pem", "cannot be read", id="ca-file"),
        pytest.param(f"{ENDPOINT}CLIENT_KEY_FILE", "/nowhere/key.pem", "needs CLIENT_CERT_FILE", id="key-alone"),
        pytest.param(f"{ENDPOINT}TIMEOUT_S", "none", "expected seconds", id="none-where-it-is-needed"),
        pytest.param("DELIVERY_KAFKA__BOOTSTRAP_SERVERS", "kafka", "expected host:port", id="kafka-port"),
        pytest.param("DELIVERY_KAFKA__SECURITY_PROTOCOL", "TLS", "PLAINTEXT or SSL or", id="kafka-protocol"),
        pytest.param("DELIVERY_KAFKA__SASL_MECHANISM", "PLAIN", "SASL_SSL or SASL_PLAINTEXT", id="kafka-mechanism"),
        pytest.param("DELIVERY_KAFKA__SSL_CAFILE", "/x", "needs DELIVERY_KAFKA__SECURITY_PROTOCOL", id="kafka-ca"),
        pytest.param("DELIVERY_REDIS__URL", f"http://:{LEAK}@redis", "expected redis://", id="redis"),
        pytest.param("DELIVERY_HTTP__LISTEN", "8080", "expected host:port", id="listen"),
        pytest.param("DELIVERY_HTTP__TOKEN", f"{LEAK} x", "printable ASCII characters without blanks", id="token"),
        pytest.param("DELIVERY_LOG__LEVEL", "loud", "debug or info or warning or error", id="level"),
        pytest.param("DELIVERY_START", "0", "latest or earliest", id="start"),
        pytest.param("DELIVERY_STRICT", "false", "error or warn", id="strict"),
        pytest.param("DELIVERY_TENANTS", "[]", "expected a JSON object", id="tenants-list"),
        pytest.param("DELIVERY_TENANTS", f'{{"a": {LEAK}}}', "no valid JSON at line 1, column 7", id="CF-07-bad-json"),
        pytest.param("DELIVERY_TENANTS", '{"a": {}, "a": {}}', "the name a twice", id="json-twice"),
        pytest.param("DELIVERY_TENANTS", '{"a": ' * 100_000, "too many levels", id="json-deep"),
        pytest.param("DELIVERY_TENANTS", '{"a": NaN}', "NaN", id="json-nan"),
        pytest.param("DELIVERY_TENANTS", "9" * 5_000, "JSON", id="json-digits"),
        pytest.param("DELIVERY_TENANTS_FILE", f"/nowhere/{LEAK}", "cannot be read (No such file", id="tenants-file"),
    ],
)
def test_a_wrong_value_is_one_line_with_its_variable_and_what_is_expected(variable: str, value: str, says: str) -> None:
    (fault,) = faults_of({**RIGHT, variable: value})
    assert fault.startswith(f"{variable}: ")
    assert says in fault
    assert LEAK not in fault
    assert "\n" not in fault


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PROXY", f"http://u:{LEAK}@proxy:3128"),
    ],
)
def test_a_setting_of_a_later_version_is_refused_and_not_ignored(name: str, value: str) -> None:
    (fault,) = faults_of({**RIGHT, ENDPOINT + name: value})
    assert fault.startswith(f"{ENDPOINT}{name}: ")
    assert "not supported by this version" in fault
    assert LEAK not in fault


def test_what_asks_for_nothing_of_a_later_version_is_fine() -> None:
    assert faults_of({**RIGHT, f"{ENDPOINT}PROXY": "none", f"{ENDPOINT}MAX_IN_FLIGHT": "none"}) == ()
    assert faults_of({**RIGHT, f"{ENDPOINT}ON_GONE": "disable", f"{ENDPOINT}SCOPE": "none"}) == ()


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        (f"{ENDPOINT}TOPICZ", f"; did you mean {ENDPOINT}TOPICS?"),
        (f"{ENDPOINT}SECRET_FILE", f"; did you mean {ENDPOINT}SECRETS_FILE?"),
        (f"{ENDPOINT}RETRY_MAX_ATTEMPTS", f"; did you mean {ENDPOINT}RETRY__MAX_ATTEMPTS?"),
        ("DELIVERY_KAFKA_BOOTSTRAP_SERVERS", "; did you mean DELIVERY_KAFKA__BOOTSTRAP_SERVERS?"),
        ("DELIVERY_KAFKAA__SSL_CAFILE", "; did you mean DELIVERY_KAFKA__SSL_CAFILE?"),
        ("DELIVERY_TENANT__ACME__ENDPOINTS__X__URL", "; did you mean DELIVERY_TENANTS__ACME__ENDPOINTS__X__URL?"),
        ("DELIVERY_SWEEP_S__X", ""),
        ("DELIVERY_TENANTS_FILE__ACME__URL", ""),
        ("DELIVERY_HTTP_PORT", ""),
        ("DELIVERY_", ""),
        pytest.param("DELIVERY_TENANTS__ACME__EU__URL", "", id="CF-05-delimiter-in-a-name"),
    ],
)
def test_an_unknown_variable_is_an_error_that_names_the_nearest(variable: str, hint: str) -> None:
    (fault,) = faults_of({**RIGHT, variable: "1"})
    assert fault.startswith(f"{variable}: unknown setting{hint}")


def test_an_unknown_variable_is_a_warning_during_a_rollback() -> None:
    configuration = load({**RIGHT, "DELIVERY_STRICT": "warn", f"{ENDPOINT}TOPICZ": "a"})
    assert configuration.warnings == (f"{ENDPOINT}TOPICZ: unknown setting, ignored; did you mean {ENDPOINT}TOPICS?",)


def test_strict_warn_forgives_no_other_fault() -> None:
    (fault,) = faults_of({**RIGHT, "DELIVERY_STRICT": "warn", f"{ENDPOINT}TIMEOUT_S": "0"})
    assert "expected seconds" in fault


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (f"{ENDPOINT}URL", f"{ENDPOINT.lower()}url"),
        ("DELIVERY_TENANTS__BIG_CO__TIMEOUT_S", "DELIVERY_TENANTS__BIG-CO__TIMEOUT_S"),
    ],
)
def test_a_variable_given_twice_in_two_spellings_is_an_error(one: str, other: str) -> None:
    (fault,) = faults_of({**RIGHT, one: "https://example.com/", other: "https://example.com/"})
    assert "given twice" in fault
    assert one in fault
    assert other in fault


@pytest.mark.parametrize(
    "name", ["BIG__CO", "BIG_CO_", "_CO", "BÜRO", "X" * 41, pytest.param("BIG___BROTHER", id="CF-05-delimiter")]
)
def test_a_name_that_would_be_split_or_collide_is_refused(name: str) -> None:
    faults = faults_of({**RIGHT, f"DELIVERY_TENANTS__{name}__TIMEOUT_S": "5"})
    assert len(faults) == 1
    assert faults[0].startswith("DELIVERY_TENANTS__")


def test_dead_letters_is_no_name_of_an_endpoint() -> None:
    variables = {f"DELIVERY_TENANTS__ACME__ENDPOINTS__DEAD_LETTERS__{name}": "x" for name in ("URL", "TOPICS")}
    (fault,) = faults_of({**RIGHT, **variables})
    assert fault.startswith("DELIVERY_TENANTS__ACME__ENDPOINTS__DEAD_LETTERS: dead-letters is no name")


@pytest.mark.parametrize("name", ["Acme", "big_co", "a--b", "-a", "", "a.b", "a" * 41])
def test_a_name_in_json_has_its_final_form(name: str) -> None:
    (fault,) = faults_of({**RIGHT, "DELIVERY_TENANTS": json.dumps({name: {}})})
    assert "expected lower-case letters and digits" in fault


def test_every_fault_is_told_at_once_with_its_place() -> None:
    tenants = {"acme": {"endpoints": {"billing": {"url": "https://u:p@h/", "topcs": "a", "retry": {"jitter": 1}}}}}
    assert faults_of({"DELIVERY_TENANTS": json.dumps(tenants), "DELIVERY_SWEEP_S": "x"}) == (
        "DELIVERY_TENANTS: acme.endpoints.billing.topcs: unknown setting; did you mean topics?",
        "DELIVERY_SWEEP_S: expected seconds from 0.1 to 300",
        "DELIVERY_TENANTS: acme.endpoints.billing.url: expected a URL without user name and password: "
        "put them in HEADERS, as authorization",
        "DELIVERY_TENANTS: acme.endpoints.billing.retry.jitter: expected additive or full or equal or none",
        "DELIVERY_KAFKA__BOOTSTRAP_SERVERS: required: host:port[,host:port]",
        "DELIVERY_REDIS__URL: required: redis://[user:password@]host:6379/0, or rediss://… over TLS",
        "DELIVERY_TENANTS: acme.endpoints.billing.topics: required: names of source topics like orders,invoices",
        "DELIVERY_TENANTS: acme.endpoints.billing.secrets: required: whsec_… (or its _FILE twin), "
        "or SIGNING=none to send unsigned",
    )


@pytest.mark.parametrize("name", ["URL", "TOPICS", "SECRETS"])
def test_what_an_endpoint_needs_is_asked_for_by_name(name: str) -> None:
    (fault,) = faults_of(without(name))
    assert fault.startswith(f"{ENDPOINT}{name}: required: ")


def test_no_endpoint_at_all_is_a_fault() -> None:
    (fault,) = faults_of(PROCESS)
    assert fault.startswith("DELIVERY_TENANTS: no endpoint is configured")


@pytest.mark.parametrize("secret", [pytest.param(f"whsec_{LEAK}", id="CF-07"), f"{SECRET},{LEAK}"])
def test_a_missing_field_beside_a_secret_does_not_print_the_secret(secret: str) -> None:
    tenants = json.dumps({"acme": {"endpoints": {"billing": {"secrets": secret}}}})
    with pytest.raises(SettingsInvalid) as caught:
        load({**PROCESS, "DELIVERY_TENANTS": tenants})
    assert LEAK not in "".join(traceback.format_exception(caught.value))
    assert LEAK not in repr(caught.value)
    assert str(caught.value).splitlines() == list(caught.value.faults)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize("key", [f"whsec_{LEAK}", f"a {LEAK}", f"urll__whsec_{LEAK}"])
def test_a_secret_in_the_place_of_a_name_is_not_printed(key: str) -> None:
    places: list[dict[str, object]] = [{key: {}}, {"acme": {key: 1}}]
    for tenants in places:
        faults = faults_of({**RIGHT, "DELIVERY_TENANTS": json.dumps(tenants)})
        assert len(faults) == 1
        assert LEAK not in faults[0]


def test_variables_that_kubernetes_sets_for_a_service_are_ignored() -> None:
    links = {
        "DELIVERY_SERVICE_HOST": "10.0.0.1",
        "DELIVERY_SERVICE_PORT": "80",
        "DELIVERY_SERVICE_PORT_HTTP": "80",
        "DELIVERY_PORT": "tcp://10.0.0.1:80",
        "DELIVERY_PORT_8080_TCP": "tcp://10.0.0.1:80",
        "DELIVERY_PORT_8080_TCP_PROTO": "tcp",
        "DELIVERY_PORT_8080_TCP_PORT": "8080",
        "DELIVERY_PORT_8080_TCP_ADDR": "10.0.0.1",
        "DELIVERY_STATUS_PAGE_SERVICE_HOST": "10.0.0.1",
        "DELIVERY_STATUS_PAGE_PORT": "tcp://10.0.0.1:80",
    }
    assert faults_of({**RIGHT, **links}) == ()


VALUES = st.one_of(
    st.sampled_from(
        ["", "none", "0", "[]", "{}", "null", '{"acme": 1}', "a,b", SECRET, "https://[::1", "1e400", "'", "["]
    ),
    st.text(st.characters(exclude_characters="\0"), max_size=20),
)
NAMES = (
    *("TENANTS", "TENANTS_FILE", "ACME", "acme", "ENDPOINTS", "BILLING", "URL", "SECRETS", "SECRETS_FILE", "RETRY"),
    *("SCHEDULE", "HEADERS", "STATUSES", "KAFKA", "REDIS", "URL_FILE", "DEFAULTS", "ALLOW_NETWORKS", "ALLOW_PORTS"),
    *("X", "STRICT", "HTTP", "LISTEN", "TOPICS", ""),
)
VARIABLES = st.lists(st.sampled_from(NAMES), min_size=1, max_size=6).map(lambda parts: "DELIVERY_" + "__".join(parts))


@given(st.dictionaries(VARIABLES, VALUES), st.booleans())
def test_whatever_is_set_there_is_a_configuration_or_a_list_of_lines(given_: dict[str, str], right_too: bool) -> None:
    for fault in faults_of({**RIGHT, **given_} if right_too else given_):
        assert fault.startswith("DELIVERY_")
        assert len(fault.splitlines()) == 1
