"""The settings of endpoints: one model for all three levels. A field that is not set here may be set further out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict

from delivery.model import Answering, Jitter, OnExhausted, OnGone, RetryUnsafe, Signing, SigningKey
from supervisor.settings import texts, urls
from supervisor.settings.fields import Reads, boolean, choice, durations, listed, path, refuse, seconds, unset
from supervisor.settings.fields import number as decimal
from supervisor.settings.fields import whole as count
from supervisor.settings.signing import signing_keys

_DAY_S = 86_400.0
_MONTH_S = 31 * _DAY_S
_MIB = 1_048_576


class Options(BaseModel):
    """What all models here share: no unknown names, and no input in an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class RetryOptions(Options):
    """How one record is tried again."""

    max_attempts: Annotated[int | None, Reads(parse=count(1, 1_000), optional=True)] = unset(
        "Requests for one event, the first included"
    )
    base_s: Annotated[float | None, Reads(parse=seconds(0.001, 3_600), unit="s")] = unset("Wait before the second one")
    factor: Annotated[float | None, Reads(parse=decimal(1, 10))] = unset("What each further wait is multiplied by")
    max_wait_s: Annotated[float | None, Reads(parse=seconds(0.001, _DAY_S), unit="s")] = unset(
        "Longest wait, before the jitter"
    )
    schedule: Annotated[tuple[float, ...] | None, Reads(parse=durations, optional=True)] = unset(
        "The waits themselves, like `5s,5m,30m,2h` (ms, s, m, h, d), instead of the four above; "
        "together with `RETRY__MAX_ATTEMPTS` an error"
    )
    jitter: Annotated[Jitter | None, Reads(parse=choice(Jitter))] = unset(
        "How chance changes a wait: `additive` (times 1 to 1.5), `full` (0 to the wait), `equal` (half of it to all), "
        "`none`"
    )
    retry_after_max_s: Annotated[float | None, Reads(parse=seconds(1, _DAY_S), unit="s")] = unset(
        "Most that a `Retry-After` is obeyed for"
    )
    min_429_s: Annotated[float | None, Reads(parse=seconds(0, 3_600), unit="s")] = unset(
        "Least wait after a 429 without `Retry-After`; doubles"
    )
    budget_ratio: Annotated[float | None, Reads(parse=decimal(0, 100))] = unset(
        "Retries that each first attempt earns its scope; only for a `SCOPE` that two endpoints or more have, and the "
        "same for all of them"
    )
    budget_per_s: Annotated[float | None, Reads(parse=decimal(0.001, 100_000))] = unset(
        "Retries that each second earns it"
    )
    budget_burst: Annotated[int | None, Reads(parse=count(1, 1_000_000))] = unset(
        "Retries that it has at first, and at most in reserve"
    )


class HaltOptions(Options):
    """When a loop stops by itself, and for how long."""

    after: Annotated[int | None, Reads(parse=count(1, 1_000))] = unset("Rejections in a row that halt the endpoint")
    after_failing: Annotated[int | None, Reads(parse=count(1, 1_000))] = unset(
        "Events in a row that ended without a delivery, each tried until its limits, that halt it"
    )
    pause_s: Annotated[float | None, Reads(parse=seconds(0.1, _DAY_S), unit="s")] = unset("Pause after a halt")
    growth: Annotated[float | None, Reads(parse=decimal(1, 10))] = unset(
        "What the pause is multiplied by at each further halt for rejections without a delivery between"
    )
    max_s: Annotated[float | None, Reads(parse=seconds(0.1, _MONTH_S), unit="s")] = unset("Longest pause")


class EndpointOptions(Options):
    """Everything that can be set for one endpoint, one tenant or all."""

    url: Annotated[str | None, Reads(parse=urls.url)] = unset("Where events are sent; `https://`")
    topics: Annotated[tuple[str, ...] | None, Reads(parse=listed(texts.topic, "names of Kafka topics"))] = unset(
        "Source topics"
    )
    event_types: Annotated[tuple[str, ...] | None, Reads(parse=listed(texts.glob, "patterns like order.*"))] = unset(
        "Patterns of event types that are sent; the others are not queued"
    )
    secrets: Annotated[tuple[SigningKey, ...] | None, Reads(parse=signing_keys, secret=True, optional=True)] = unset(
        "Signing secrets, `whsec_…`; all of them sign, in this order. The file is read again when it changes"
    )
    secrets_file: Annotated[str | None, Reads(parse=path, optional=True)] = unset("File with `SECRETS`")
    signing: Annotated[Signing | None, Reads(parse=choice(Signing))] = unset(
        "`standard` (Standard Webhooks; needs `SECRETS`) or `none`"
    )
    headers: Annotated[tuple[tuple[str, str], ...] | None, Reads(parse=texts.headers, secret=True, optional=True)] = (
        unset('Headers sent with every request, as JSON: `{"authorization": "Bearer …"}`')
    )
    forward_headers: Annotated[
        tuple[str, ...] | None, Reads(parse=listed(texts.glob, "patterns like ce_*"), optional=True)
    ] = unset("Patterns of record headers that are sent on, like `ce_*,traceparent`")
    enabled: Annotated[bool | None, Reads(parse=boolean)] = unset("`false`: events are queued, and nothing is sent")

    statuses: Annotated[Mapping[int, Answering] | None, Reads(parse=texts.statuses, optional=True)] = unset(
        "What statuses from 300 to 599 mean instead, like `404=retry,409=delivered` "
        "(`delivered`, `rejected`, `retry`); a 2xx always means delivered"
    )
    idempotent: Annotated[bool | None, Reads(parse=boolean)] = unset(
        "`false`: an event is not sent again when the endpoint may have received it; it becomes a dead letter "
        "`unconfirmed`"
    )
    retry_unsafe: Annotated[RetryUnsafe | None, Reads(parse=texts.retry_unsafe)] = unset(
        "With `IDEMPOTENT=false`: statuses that say that a request was not processed, so that it may be sent again "
        "(`503+Retry-After`: a 503 with a valid `Retry-After`); `none`: no answer does"
    )
    on_exhausted: Annotated[OnExhausted | None, Reads(parse=choice(OnExhausted))] = unset(
        "When the attempts are spent: `dead_letter`, `hold` (halt and try again), or `throttled` (hold when the last "
        "answer was 429, or 503 with `Retry-After`; dead letter otherwise)"
    )
    hold_max_s: Annotated[float | None, Reads(parse=seconds(1, _MONTH_S), unit="s")] = unset(
        "Longest time of holding without a delivery; then dead letters"
    )
    on_gone: Annotated[OnGone | None, Reads(parse=choice(OnGone))] = unset(
        "After a streak that is all 410: `disable` (nothing is sent until it is resumed) or `halt`"
    )

    connect_timeout_s: Annotated[float | None, Reads(parse=seconds(0.01, 300), unit="s")] = unset(
        "Most that connecting may take"
    )
    timeout_s: Annotated[float | None, Reads(parse=seconds(0.05, 3_600), unit="s")] = unset(
        "Most that a whole attempt may take, name resolution and the answer's body included"
    )
    deadline_s: Annotated[float | None, Reads(parse=seconds(0.001, _MONTH_S), unit="s", optional=True)] = unset(
        "After this time from its first dispatch an event is a dead letter"
    )
    max_age_s: Annotated[float | None, Reads(parse=seconds(0.001, 12 * _MONTH_S), unit="s", optional=True)] = unset(
        "After this time from its own time an event is a dead letter"
    )
    keep_alive_s: Annotated[float | None, Reads(parse=seconds(0, 300), unit="s")] = unset(
        "How long an idle connection is kept"
    )

    retry: RetryOptions = RetryOptions()
    halt: HaltOptions = HaltOptions()

    scope: Annotated[str | None, Reads(parse=texts.scope, optional=True)] = unset(
        "Name of what this endpoint has in common with others, like one account or host: a `Retry-After` that one of "
        "them gets holds for all. Names are a tenant's own, `global:NAME` is one of all tenants"
    )
    rate: Annotated[float | None, Reads(parse=texts.rate, optional=True)] = unset(
        "Most requests of the scope (without `SCOPE`: of this endpoint) in a time, like `10/s`, `750/min`, `2.5/h`; "
        "over it they wait. The same for all endpoints of a scope"
    )
    rate_burst: Annotated[int | None, Reads(parse=count(1, 1_000_000), optional=True)] = unset(
        "Most requests at once within `RATE`; none: those of one second, at least 1"
    )
    max_in_flight: Annotated[int | None, Reads(parse=count(1, 1_000_000), optional=True)] = unset(
        "Most requests at once of the scope, over all workers; the others wait in a line. The same for all endpoints "
        "of a scope. Without `SCOPE` there is nothing to limit: an endpoint has one at a time"
    )

    allow_networks: Annotated[tuple[str, ...] | None, Reads(parse=texts.networks, optional=True)] = unset(
        "Networks that are not public and may be reached all the same, like `10.1.0.0/16,192.168.3.207`; "
        "cloud metadata addresses only one by one"
    )
    allow_ports: Annotated[frozenset[int] | None, Reads(parse=texts.ports, optional=True)] = unset(
        "Ports beside 80, 443, 8080 and 8443"
    )
    allow_http: Annotated[bool | None, Reads(parse=boolean)] = unset("`true`: `http://` may be used")
    ca_file: Annotated[str | None, Reads(parse=path, optional=True)] = unset(
        "PEM file with the authorities to trust instead of the system's"
    )
    client_cert_file: Annotated[str | None, Reads(parse=path, optional=True)] = unset("PEM file with our certificate")
    client_key_file: Annotated[str | None, Reads(parse=path, optional=True)] = unset(
        "PEM file with its key, when that is not in the same file"
    )
    proxy: Annotated[None, Reads(parse=refuse, secret=True, optional=True, supported=False)] = unset(
        "Proxy for this endpoint's requests"
    )
    max_event_bytes: Annotated[int | None, Reads(parse=count(1, 64 * _MIB), unit="bytes")] = unset(
        "Larger events are dead letters"
    )
    max_answer_bytes: Annotated[int | None, Reads(parse=count(1, 16 * _MIB), unit="bytes")] = unset(
        "How much of an answer's body is read"
    )
    excerpt_bytes: Annotated[int | None, Reads(parse=count(0, 65_536), unit="bytes")] = unset(
        "How much of it a dead letter keeps; 0 keeps nothing of answers"
    )


class QuotaOptions(Options):
    """How many requests a tenant has."""

    requests: Annotated[int | None, Reads(parse=count(1, 1_000_000_000), optional=True)] = unset(
        "Requests that all the tenant's endpoints have together in one window, of all workers"
    )
    window_s: Annotated[float | None, Reads(parse=seconds(1, 12 * _MONTH_S), unit="s", optional=True)] = unset(
        "Length of the window; each begins at a multiple of it since the Unix epoch. Needed with `QUOTA__REQUESTS`"
    )


class TenantOptions(EndpointOptions):
    """What is set for all endpoints of a tenant, and the endpoints."""

    quota: QuotaOptions = QuotaOptions()
    endpoints: dict[str, EndpointOptions] = {}
