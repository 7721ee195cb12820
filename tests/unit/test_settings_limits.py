"""What endpoints share: scopes, rates, retry budgets and quotas."""

from __future__ import annotations

import pytest

from delivery.model import Quota, Rate, RetryBudget, SharedLimits
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


@pytest.mark.parametrize(
    ("value", "per_s", "burst"),
    [("10/s", 10.0, 10), ("750/min", 12.5, 12), ("2.5/h", 2.5 / 3600, 1), ("3.75/s", 3.75, 3), (" 1/s ", 1.0, 1)],
)
def test_a_rate_and_the_burst_that_follows_from_it(value: str, per_s: float, burst: int) -> None:
    assert only_endpoint({**RIGHT, f"{ENDPOINT}RATE": value}).shared.rate == Rate(per_s=per_s, burst=burst)
    given = {**RIGHT, f"{ENDPOINT}RATE": value, f"{ENDPOINT}RATE_BURST": "5"}
    assert only_endpoint(given).shared.rate == Rate(per_s=per_s, burst=5)
    assert only_endpoint({**given, "DELIVERY_DEFAULTS__RATE": "1/s"}).shared.rate == Rate(per_s=per_s, burst=5)


@pytest.mark.parametrize("value", ["10", "10/", "/s", "10/sec", "0/s", "-1/s", "1e3/s", "100001/s", "0.01/h", "10 / s"])
def test_a_rate_that_is_none_is_refused(value: str) -> None:
    (fault,) = faults_of({**RIGHT, f"{ENDPOINT}RATE": value})
    assert fault.startswith(f"{ENDPOINT}RATE: expected requests in a time like 10/s, 750/min or 2.5/h")


def test_a_burst_without_a_rate_is_an_error() -> None:
    (fault,) = faults_of({**RIGHT, f"{ENDPOINT}RATE_BURST": "5"})
    assert fault == f"{ENDPOINT}RATE_BURST: needs RATE too"
    assert faults_of({**RIGHT, f"{ENDPOINT}RATE_BURST": "5", f"{ENDPOINT}RATE": "none"}) != ()


SECOND = "DELIVERY_TENANTS__ACME__ENDPOINTS__SECOND__"


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        ({"RATE": "10/s"}, {"RATE": "20/s"}, "RATE"),
        ({"RATE": "10/s"}, {}, "RATE"),
        ({"RATE": "10/s", "RATE_BURST": "5"}, {"RATE": "10/s", "RATE_BURST": "6"}, "RATE_BURST"),
        ({"MAX_IN_FLIGHT": "2"}, {"MAX_IN_FLIGHT": "3"}, "MAX_IN_FLIGHT"),
        ({"MAX_IN_FLIGHT": "2"}, {}, "MAX_IN_FLIGHT"),
        ({"RETRY__BUDGET_RATIO": "0.5"}, {}, "RETRY__BUDGET_RATIO"),
        ({"RETRY__BUDGET_PER_S": "2"}, {"RETRY__BUDGET_PER_S": "1"}, "RETRY__BUDGET_PER_S"),
        ({"RETRY__BUDGET_BURST": "5"}, {}, "RETRY__BUDGET_BURST"),
    ],
)
def test_one_scope_has_one_rate_and_one_budget_and_the_error_names_both_variables(
    first: dict[str, str], second: dict[str, str], name: str
) -> None:
    both = {
        **RIGHT,
        f"{ENDPOINT}SCOPE": "api",
        f"{SECOND}SCOPE": "api",
        f"{SECOND}URL": "https://example.com/x",
        f"{SECOND}TOPICS": "orders",
        f"{SECOND}SECRETS": SECRET,
    }
    rates = {ENDPOINT + key: value for key, value in first.items()}
    (fault,) = faults_of({**both, **rates, **{SECOND + key: value for key, value in second.items()}})
    assert fault.startswith(f"{SECOND}{name}: must be the same for all endpoints of the scope acme/api")
    assert fault.endswith(f" {ENDPOINT}{name}")
    assert faults_of({**both, **rates, **{SECOND + key: value for key, value in first.items()}}) == ()
    apart = {**both, **rates, f"{SECOND}SCOPE": "other", **{SECOND + key: value for key, value in second.items()}}
    assert faults_of(apart) == ()


def budgets_of(environ: dict[str, str]) -> dict[str, RetryBudget | None]:
    return {endpoint.name: endpoint.shared.budget for endpoint in load(environ).endpoints}


def test_a_scope_that_two_endpoints_name_has_a_retry_budget_and_an_endpoint_alone_in_its_own_has_none() -> None:
    second = {f"{SECOND}URL": "https://example.com/x", f"{SECOND}TOPICS": "orders", f"{SECOND}SECRETS": SECRET}
    alone = {**RIGHT, **second, f"{SECOND}SCOPE": "api", "DELIVERY_DEFAULTS__RETRY__BUDGET_BURST": "5"}
    assert set(budgets_of(alone).values()) == {None}
    (first,) = budgets_of(alone).keys() - {"second"}
    both = {**alone, f"{ENDPOINT}SCOPE": "api"}
    assert budgets_of(both) == {first: RetryBudget(burst=5), "second": RetryBudget(burst=5)}
    given = {**both, "DELIVERY_DEFAULTS__RETRY__BUDGET_RATIO": "0.1", "DELIVERY_DEFAULTS__RETRY__BUDGET_PER_S": "0.5"}
    assert set(budgets_of(given).values()) == {RetryBudget(ratio=0.1, per_s=0.5, burst=5)}


@pytest.mark.parametrize(
    ("name", "value"), [("RATIO", "-0.1"), ("RATIO", "101"), ("PER_S", "0"), ("BURST", "0"), ("BURST", "2.5")]
)
def test_a_budget_that_is_none_or_never_fills_is_refused(name: str, value: str) -> None:
    (fault,) = faults_of({**RIGHT, f"{ENDPOINT}RETRY__BUDGET_{name}": value})
    assert fault.startswith(f"{ENDPOINT}RETRY__BUDGET_{name}: expected")


def test_requests_at_once_are_those_of_the_scope_and_none_is_no_limit() -> None:
    given = {**RIGHT, f"{ENDPOINT}SCOPE": "api", "DELIVERY_DEFAULTS__MAX_IN_FLIGHT": "2"}
    assert only_endpoint(given).shared.max_in_flight == 2
    assert only_endpoint({**given, f"{ENDPOINT}MAX_IN_FLIGHT": "none"}).shared.max_in_flight is None


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many"])
def test_requests_at_once_that_are_no_number_above_zero_are_refused(value: str) -> None:
    (fault,) = faults_of({**RIGHT, f"{ENDPOINT}MAX_IN_FLIGHT": value})
    assert fault.startswith(f"{ENDPOINT}MAX_IN_FLIGHT: expected")
