"""Event → endpoints: topics, types, tenants, and what does not fit into a queue."""

from __future__ import annotations

import fnmatch

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from delivery.model import Endpoint, Event, Headers, Position
from delivery.policy.event import queue_headers
from delivery.policy.record_size import record_size
from delivery.policy.subscribe import Subscriptions, Unrouted, fits


def endpoint(
    tenant: str = "acme",
    name: str = "billing",
    *,
    topics: tuple[str, ...] = ("orders",),
    types: tuple[str, ...] = ("*",),
    enabled: bool = True,
    max_event_bytes: int = 1_048_576,
) -> Endpoint:
    return Endpoint(
        tenant=tenant,
        name=name,
        url="https://example.com/",
        topics=frozenset(topics),
        event_types=types,
        enabled=enabled,
        max_event_bytes=max_event_bytes,
    )


def event(
    *,
    topic: str = "orders",
    tenant: str | None = None,
    type_: str | None = None,
    body: bytes = b"{}",
    headers: Headers = (),
    key: bytes | None = None,
) -> Event:
    return Event(
        id="evt_1",
        type=type_,
        tenant=tenant,
        time_ms=1_700_000_000_000,
        source=Position(topic=topic, partition=0, offset=1),
        content_type="application/json",
        key=key,
        body=body,
        headers=headers,
    )


@pytest.mark.parametrize(
    ("globs", "type_", "subscribed"),
    [
        (("*",), None, True),
        (("*",), "anything", True),
        (("order.*",), "order.created", True),
        (("order.*",), "order.line.added", True),
        (("order.*",), "order.", True),
        (("order.*",), "order", False),
        (("order.*",), "reorder.created", False),
        (("order.*",), "Order.created", False),
        (("ORDER.*",), "order.created", False),
        (("order.*",), None, False),
        (("**",), None, False),
        (("order.*", "invoice.paid"), "invoice.paid", True),
        (("order.*", "invoice.paid"), "invoice.paid2", False),
        (("order.*", "*"), None, True),
        (("a.b",), "axb", False),
        (("order.*",), "order.a\nb", True),
        (("order.a",), "order.a\n", False),
        ((), "order", False),
    ],
)
def test_event_types_are_matched_by_case_sensitive_globs(
    globs: tuple[str, ...], type_: str | None, subscribed: bool
) -> None:
    billing = endpoint(types=globs)
    expected = (billing,) if subscribed else Unrouted.NO_SUBSCRIBER
    assert Subscriptions([billing]).route(event(type_=type_)) == expected


@given(st.lists(st.text(alphabet="ab.*?[]!", max_size=5), min_size=1, max_size=3), st.text(alphabet="ab.", max_size=5))
def test_several_globs_match_what_one_of_them_matches(globs: list[str], type_: str) -> None:
    subscriptions = Subscriptions([endpoint(types=tuple(globs))])
    matched = any(fnmatch.fnmatchcase(type_, glob) for glob in globs)
    assert isinstance(subscriptions.route(event(type_=type_)), tuple) is matched


def test_an_event_with_a_tenant_goes_to_that_tenants_endpoints_only() -> None:
    ours, theirs = endpoint("acme"), endpoint("big-co")
    subscriptions = Subscriptions([ours, theirs], broadcast_topics={"orders"})
    assert subscriptions.route(event(tenant="big-co")) == (theirs,)


@pytest.mark.parametrize("tenant", ["nobody", "", "Acme", "acme "])
def test_a_tenant_that_is_not_known_gets_nothing_and_nobody_else_does(tenant: str) -> None:
    subscriptions = Subscriptions([endpoint("acme")], broadcast_topics={"orders"})
    assert subscriptions.route(event(tenant=tenant)) is Unrouted.UNKNOWN_TENANT


def test_a_known_tenant_without_endpoints_is_no_subscriber() -> None:
    subscriptions = Subscriptions([endpoint("acme")], tenants={"big-co"})
    assert subscriptions.route(event(tenant="big-co")) is Unrouted.NO_SUBSCRIBER


def test_an_event_without_a_tenant_goes_to_the_only_tenant_that_lists_its_topic() -> None:
    first, second, other = endpoint(name="a"), endpoint(name="b"), endpoint("big-co", topics=("invoices",))
    assert Subscriptions([first, second, other]).route(event()) == (first, second)


def test_an_event_without_a_tenant_goes_to_nobody_when_two_tenants_list_its_topic() -> None:
    subscriptions = Subscriptions([endpoint("acme"), endpoint("big-co", types=("never",), enabled=False)])
    assert subscriptions.route(event()) is Unrouted.NO_TENANT


def test_an_event_of_a_broadcast_topic_goes_to_all_tenants_that_list_it() -> None:
    ours, theirs = endpoint("acme"), endpoint("big-co")
    assert Subscriptions([ours, theirs], broadcast_topics=["orders"]).route(event()) == (ours, theirs)


def test_a_topic_that_nobody_lists_has_no_subscriber() -> None:
    assert Subscriptions([endpoint()]).route(event(topic="invoices")) is Unrouted.NO_SUBSCRIBER
    assert Subscriptions([endpoint()], ["invoices"]).route(event(topic="invoices")) is Unrouted.NO_SUBSCRIBER


def test_an_endpoint_that_is_not_enabled_is_subscribed_too() -> None:
    off = endpoint(enabled=False)
    assert Subscriptions([off]).route(event()) == (off,)


def test_the_subscribed_topics_are_those_of_all_endpoints() -> None:
    assert Subscriptions([endpoint(topics=("a", "b")), endpoint(topics=("b", "c"))]).topics == {"a", "b", "c"}


@given(
    st.lists(
        st.tuples(st.sampled_from([None, "acme", "big-co", "nobody"]), st.sampled_from(["order.a", "x", None])),
        max_size=30,
    )
)
def test_a_route_does_not_depend_on_what_was_routed_before(asked: list[tuple[str | None, str | None]]) -> None:
    endpoints = [endpoint("acme", types=("order.*",)), endpoint("big-co", topics=("other",))]
    old = Subscriptions(endpoints)
    for tenant, type_ in asked:
        one = event(tenant=tenant, type_=type_)
        assert old.route(one) == Subscriptions(endpoints).route(one)


def test_any_number_of_types_is_routed_and_few_are_remembered() -> None:
    subscriptions = Subscriptions([endpoint(types=("order.*",))])
    for number in range(10_000):
        assert isinstance(subscriptions.route(event(type_=f"order.{number}")), tuple)
    assert isinstance(subscriptions.route(event(type_="order." + "x" * 10_000)), tuple)
    remembered = subscriptions._routes
    assert len(remembered) <= 4096
    assert max(len(type_ or "") for _, _, type_ in remembered) <= 256


@pytest.mark.parametrize(("size", "fitting"), [(100, True), (101, False)])
def test_a_body_larger_than_the_endpoint_takes_does_not_fit(size: int, fitting: bool) -> None:
    why = fits(event(body=b"x" * size), endpoint(max_event_bytes=100), None)
    assert (why is None) is fitting
    if why:
        assert "101" in why
        assert "100" in why


@given(
    st.binary(max_size=300),
    st.none() | st.binary(max_size=30),
    st.lists(st.tuples(st.text(max_size=8) | st.just("delivery-x"), st.none() | st.binary(max_size=20)), max_size=5),
    st.integers(0, 1000),
)
def test_what_fits_is_no_larger_than_the_topic_takes(
    body: bytes, key: bytes | None, headers: list[tuple[str, bytes | None]], limit: int
) -> None:
    one = event(body=body, key=key, headers=headers)
    size = record_size(key, body, queue_headers(one))
    why = fits(one, endpoint(), limit)
    if why is None:
        assert size <= limit
    else:
        assert size + 150 > limit


@given(
    st.none() | st.binary(max_size=50),
    st.none() | st.binary(max_size=300),
    st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=5),
)
def test_a_records_size_is_never_estimated_below_what_the_client_writes(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=1, producer_id=1, producer_epoch=1, base_sequence=1,
        batch_size=10_000,
    )  # fmt: skip
    builder.append(0, 1_700_000_000_000, key, value, headers)
    assert len(builder.build()) <= record_size(key, value, headers)
