"""What endpoints share: scopes and quotas."""

from __future__ import annotations

import pytest

from delivery.model import Quota, SharedLimits
from supervisor.settings import load
from tests.unit.settings_environment import ENDPOINT, RIGHT, SECRET, faults_of, only_endpoint

TENANT = "DELIVERY_TENANTS__ACME__"


def test_without_any_of_it_an_endpoint_shares_nothing() -> None:
    assert only_endpoint(RIGHT).shared == SharedLimits()
    assert only_endpoint(RIGHT).shared.none


@pytest.mark.parametrize(
    ("value", "scope"),
    [("api", "acme/api"), ("api.example.com", "acme/api.example.com"), ("global:api", "global:api"), ("none", None)],
)
def test_a_scope_is_its_tenants_own_unless_it_is_global(value: str, scope: str | None) -> None:
    assert only_endpoint({**RIGHT, f"{ENDPOINT}SCOPE": value}).shared.scope == scope


def test_a_scope_may_be_set_for_all_of_a_tenant_and_each_tenant_has_its_own() -> None:
    environ = {
        **RIGHT,
        "DELIVERY_DEFAULTS__SCOPE": "api",
        "DELIVERY_TENANTS__OTHER__ENDPOINTS__X__URL": "https://example.com/x",
        "DELIVERY_TENANTS__OTHER__ENDPOINTS__X__TOPICS": "orders",
        "DELIVERY_TENANTS__OTHER__ENDPOINTS__X__SECRETS": SECRET,
    }
    assert {endpoint.shared.scope for endpoint in load(environ).endpoints} == {"acme/api", "other/api"}


@pytest.mark.parametrize("value", ["a/b", "global:", "local:api", "-api", "a" * 81, "a b", "ä"])
def test_a_scope_that_is_no_name_is_refused(value: str) -> None:
    (fault,) = faults_of({**RIGHT, f"{ENDPOINT}SCOPE": value})
    assert fault.startswith(f"{ENDPOINT}SCOPE: expected a name")


def test_a_quota_is_that_of_all_the_tenants_endpoints() -> None:
    environ = {**RIGHT, f"{TENANT}QUOTA__REQUESTS": "1000", f"{TENANT}QUOTA__WINDOW_S": "3600"}
    assert only_endpoint(environ).shared.quota == Quota(requests=1000, window_s=3600.0)
    assert not only_endpoint(environ).shared.none


@pytest.mark.parametrize(
    ("given", "lacking", "value"), [("REQUESTS", "WINDOW_S", "10"), ("WINDOW_S", "REQUESTS", "60")]
)
def test_half_a_quota_is_an_error_that_names_the_other_half(given: str, lacking: str, value: str) -> None:
    second = {
        "DELIVERY_TENANTS__ACME__ENDPOINTS__SECOND__URL": "https://example.com/x",
        "DELIVERY_TENANTS__ACME__ENDPOINTS__SECOND__TOPICS": "orders",
        "DELIVERY_TENANTS__ACME__ENDPOINTS__SECOND__SECRETS": SECRET,
    }
    (fault,) = faults_of({**RIGHT, **second, f"{TENANT}QUOTA__{given}": value})
    assert fault == f"{TENANT}QUOTA__{lacking}: required with QUOTA__{given}"
    assert faults_of({**RIGHT, f"{TENANT}QUOTA__{given}": value, f"{TENANT}QUOTA__{lacking}": "none"}) != ()


@pytest.mark.parametrize(
    ("name", "value"), [("REQUESTS", "0"), ("REQUESTS", "1.5"), ("WINDOW_S", "0.5"), ("WINDOW_S", "1h")]
)
def test_a_wrong_half_is_one_error_and_not_two(name: str, value: str) -> None:
    (fault,) = faults_of(
        {**RIGHT, f"{TENANT}QUOTA__REQUESTS": "5", f"{TENANT}QUOTA__WINDOW_S": "60", f"{TENANT}QUOTA__{name}": value}
    )
    assert fault.startswith(f"{TENANT}QUOTA__{name}: expected")


@pytest.mark.parametrize("place", ["DELIVERY_DEFAULTS__", ENDPOINT])
def test_only_tenants_have_quotas(place: str) -> None:
    (fault,) = faults_of({**RIGHT, f"{place}QUOTA__REQUESTS": "5"})
    assert fault.startswith(f"{place}QUOTA__REQUESTS")
