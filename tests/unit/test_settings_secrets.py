"""Secrets, headers and the files that hold them."""

from __future__ import annotations

import base64
import json
import logging
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from delivery.model import SigningKey
from supervisor.settings import load, signing_keys
from tests.unit.settings_environment import ENDPOINT, KEY, RIGHT, SECRET, faults_of, only_endpoint, without

ENCODED = SECRET.removeprefix("whsec_")
URL_SAFE = "whsec_" + base64.urlsafe_b64encode(b"\xfb\xef\xff" * 8).decode()
OTHER = "whsec_" + base64.b64encode(b"k" * 64).decode()


def secret_of(size: int) -> str:
    return "whsec_" + base64.b64encode(b"k" * size).decode()


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(SECRET, id="SG-01-prefix"),
        pytest.param(f"  {SECRET}\n", id="SG-02-line-end"),
        pytest.param(json.dumps([SECRET]), id="json"),
    ],
)
def test_a_secret_is_decoded_once_without_its_prefix(value: str) -> None:
    assert only_endpoint({**RIGHT, f"{ENDPOINT}SECRETS": value}).secrets == (SigningKey(key=KEY),)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        pytest.param(ENCODED, "must begin with whsec_", id="SG-01-bare"),
        pytest.param(f"v1,{SECRET}", "(entry 1 of 2): it must begin with whsec_", id="SG-01-version"),
        pytest.param(f"whsec_{SECRET}", "no strict base64", id="SG-01-twice"),
        pytest.param(secret_of(25).rstrip("="), "no strict base64", id="SG-02-no-padding"),
        pytest.param(URL_SAFE, "no strict base64", id="SG-02-url-safe"),
        pytest.param(f"{SECRET[:20]} {SECRET[20:]}", "no strict base64", id="SG-02-inner-blank"),
        pytest.param(f"{SECRET[:20]}\n{SECRET[20:]}", "whsec_", id="SG-02-inner-line-end"),
        pytest.param(secret_of(25)[:-3] + "x==", "no strict base64", id="SG-02-loose-bits"),
        pytest.param("whsec_", "its length is out of range", id="SG-03-nothing"),
        pytest.param("whsec_!!!!", "no strict base64", id="SG-03-no-base64"),
        pytest.param("whsec_eA==", "its length is out of range", id="SG-03-tiny"),
        pytest.param(secret_of(23), "24 to 64 bytes", id="23-bytes"),
        pytest.param(secret_of(65), "24 to 64 bytes", id="65-bytes"),
        pytest.param(f"whsk_{ENCODED}", "Ed25519 keys (whsk_) are not supported by this version", id="ed25519"),
        pytest.param(",".join([SECRET] * 11), "at most 10 secrets", id="eleven"),
    ],
)
def test_a_damaged_secret_is_refused_without_being_shown(value: str, says: str) -> None:
    (fault,) = faults_of({**RIGHT, f"{ENDPOINT}SECRETS": value})
    assert fault.startswith(f"{ENDPOINT}SECRETS: ")
    assert says in fault
    assert ENCODED[:12] not in fault


def test_several_secrets_keep_their_order() -> None:
    keys = (SigningKey(key=b"k" * 64), SigningKey(key=KEY))
    assert only_endpoint({**RIGHT, f"{ENDPOINT}SECRETS": f"{OTHER}, {SECRET}"}).secrets == keys
    assert signing_keys(f"{OTHER}\n{SECRET}\n") == keys


def test_a_file_of_secrets_is_read_at_the_start_and_its_path_kept(tmp_path: Path) -> None:
    file = tmp_path / "billing"
    file.write_text(f"{SECRET}\n{OTHER}\n")
    endpoint = only_endpoint({**without("SECRETS"), f"{ENDPOINT}SECRETS_FILE": str(file)})
    assert endpoint.secrets_file == str(file)
    assert endpoint.secrets == (SigningKey(key=KEY), SigningKey(key=b"k" * 64))


def test_secrets_given_nearer_replace_a_file_given_further_out(tmp_path: Path) -> None:
    file = tmp_path / "all"
    file.write_text(OTHER)
    outer = {"DELIVERY_DEFAULTS__SECRETS_FILE": str(file)}
    in_json = {"DELIVERY_TENANTS": json.dumps({"acme": {"endpoints": {"billing": {"secrets_file": str(file)}}}})}
    for environ in ({**RIGHT, **outer}, {**RIGHT, **in_json}):
        endpoint = only_endpoint(environ)
        assert (endpoint.secrets, endpoint.secrets_file) == ((SigningKey(key=KEY),), None)
    assert only_endpoint({**without("SECRETS"), **outer}).secrets_file == str(file)
    assert only_endpoint({**without("SECRETS"), **in_json}).secrets_file == str(file)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b"\n", "the file is empty"),
        (b"\xff", "not UTF-8"),
        (b"whsec_x", "no strict base64"),
    ],
)
def test_a_bad_file_of_secrets_is_found_at_the_start(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "billing"
    file.write_bytes(content)
    (fault,) = faults_of({**without("SECRETS"), f"{ENDPOINT}SECRETS_FILE": str(file)})
    assert fault.startswith(f"{ENDPOINT}SECRETS_FILE: ")
    assert says in fault


def test_a_secret_in_the_place_of_its_file_is_not_shown() -> None:
    (fault,) = faults_of({**without("SECRETS"), f"{ENDPOINT}SECRETS_FILE": SECRET})
    assert fault == f"{ENDPOINT}SECRETS_FILE: the file cannot be read (No such file or directory)"


@pytest.mark.parametrize(
    "variable",
    [
        *("DELIVERY_KAFKA__SASL_PLAIN_PASSWORD", "DELIVERY_KAFKA__SSL_PASSWORD", "DELIVERY_REDIS__URL"),
        *("DELIVERY_HTTP__TOKEN", f"{ENDPOINT}SECRETS", f"{ENDPOINT}HEADERS", f"{ENDPOINT}PROXY", "DELIVERY_TENANTS"),
        *("DELIVERY_DEFAULTS__SECRETS", "DELIVERY_TENANTS__ACME__HEADERS"),
    ],
)
def test_every_secret_setting_has_a_file_twin_and_both_are_an_error(tmp_path: Path, variable: str) -> None:
    file = tmp_path / "value"
    file.write_text("x")
    (fault,) = faults_of({**RIGHT, variable: "x", f"{variable}_FILE": str(file)})
    assert fault == f"{variable}: both given, keep one (also {variable}_FILE)"


def test_both_in_one_json_object_are_an_error() -> None:
    endpoint = {"secrets": SECRET, "secrets_file": "/x"}
    tenants = {"acme": {"endpoints": {"billing": endpoint}}}
    (fault,) = faults_of({**without("SECRETS"), "DELIVERY_TENANTS": json.dumps(tenants)})
    assert fault.startswith("DELIVERY_TENANTS: acme.endpoints.billing.secrets_file: both given")


def test_values_come_from_their_files(tmp_path: Path) -> None:
    files = {
        "DELIVERY_KAFKA__SASL_PLAIN_PASSWORD": "pass word",
        "DELIVERY_REDIS__URL": "redis://redis:6379/0",
        "DELIVERY_HTTP__TOKEN": "t0ken",
        f"{ENDPOINT}HEADERS": '{"x-token": "abc"}',
    }
    environ = {
        **without("DELIVERY_REDIS__URL"),
        "DELIVERY_KAFKA__SECURITY_PROTOCOL": "SASL_SSL",
        "DELIVERY_KAFKA__SASL_PLAIN_USERNAME": "worker",
    }
    for number, (variable, content) in enumerate(files.items()):
        file = tmp_path / str(number)
        file.write_text(f"{content}\n")
        environ[f"{variable}_FILE"] = str(file)
    configuration = load(environ)
    assert configuration.kafka.sasl_plain_password == "pass word"
    assert configuration.redis_url == "redis://redis:6379/0"
    assert configuration.http.token == "t0ken"
    assert configuration.endpoints[0].headers == (("x-token", "abc"),)


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        pytest.param({"X-Token": "abc\n"}, "header x-token: the value is not printable ASCII", id="RQ-01-line-end"),
        pytest.param({"X-Token": "abc "}, "header x-token: the value is not", id="RQ-01-blank"),
        pytest.param({"X-Token": "abc\r\nX-Evil: 1"}, "header x-token: the value is not", id="RQ-01-injection"),
        pytest.param({"X-Token": "abç"}, "header x-token: the value is not", id="not-ascii"),
        pytest.param({"Webhook-Id": "fixed"}, "header webhook-id: the name belongs", id="RQ-05-id"),
        pytest.param({"content-type": "a/b"}, "header content-type: the name belongs", id="RQ-05-content-type"),
        pytest.param({"WEBHOOK-TIMESTAMP": "1"}, "header webhook-timestamp: the name belongs", id="RQ-05-timestamp"),
        pytest.param({"webhook-other": "1"}, "begin with webhook-", id="RQ-05-kind"),
        pytest.param({"host": "a"}, "the name belongs", id="host"),
        pytest.param({"transfer-encoding": "chunked"}, "the name belongs", id="transfer-encoding"),
        pytest.param({"user-agent": "a"}, "the name belongs", id="user-agent"),
        pytest.param({"a b": "x"}, "the name is not a token", id="name"),
        pytest.param({"x-a": "1", "X-A": "2"}, "header x-a is given twice", id="twice"),
        pytest.param({"x-a": 5}, "expected a text", id="number"),
        pytest.param({}, "expected a JSON object of header names", id="none"),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused_at_the_start(headers: dict[str, object], says: str) -> None:
    # RQ-05 asks that protocol headers win; here an endpoint's own header of such a name does not even start.
    (fault,) = faults_of({**RIGHT, f"{ENDPOINT}HEADERS": json.dumps(headers)})
    assert fault.startswith(f"{ENDPOINT}HEADERS: ")
    assert says in fault
    assert "abc" not in fault


def test_headers_that_are_no_json_are_not_shown() -> None:
    (fault,) = faults_of({**RIGHT, f"{ENDPOINT}HEADERS": "authorization: Bearer abc"})
    assert "no valid JSON at line 1, column 1" in fault
    assert "abc" not in fault


def test_certificates_are_tried_at_the_start(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("client.example")
    ca, certificate, key, locked = (tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem", "locked.pem"))
    authority.cert_pem.write_to_path(ca)
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    private = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    locked.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"open sesame"),
        )
    )
    names = {"CA_FILE": ca, "CLIENT_CERT_FILE": certificate, "CLIENT_KEY_FILE": key}
    environ = {**RIGHT, **{ENDPOINT + name: str(file) for name, file in names.items()}}
    assert only_endpoint(environ).network.client_key_file == str(key)
    (fault,) = faults_of({**environ, f"{ENDPOINT}CA_FILE": str(key)})
    assert fault == f"{ENDPOINT}CA_FILE: expected a PEM file with certificates of authorities"
    for wrong in (ca, locked):
        (fault,) = faults_of({**environ, f"{ENDPOINT}CLIENT_KEY_FILE": str(wrong)})
        assert fault.startswith(f"{ENDPOINT}CLIENT_CERT_FILE: expected PEM files with a certificate and the key")
    kafka = {
        **RIGHT,
        "DELIVERY_KAFKA__SECURITY_PROTOCOL": "SSL",
        "DELIVERY_KAFKA__SSL_CERTFILE": str(certificate),
        "DELIVERY_KAFKA__SSL_KEYFILE": str(locked),
        "DELIVERY_KAFKA__SSL_PASSWORD": "open sesame",
    }
    assert load(kafka).kafka.ssl_password == "open sesame"
    (fault,) = faults_of({**kafka, "DELIVERY_KAFKA__SSL_PASSWORD": "open wheat"})
    assert fault.startswith("DELIVERY_KAFKA__SSL_CERTFILE: expected PEM files")
    assert "wheat" not in fault


def test_what_pydantic_settings_would_log_of_its_sources_is_not_logged() -> None:
    load(RIGHT)
    assert not logging.getLogger("pydantic_settings").isEnabledFor(logging.CRITICAL)
