"""`delivery status`: what is shown of each configured endpoint."""

from __future__ import annotations

import json

from delivery.model import Endpoint
from supervisor.commands.ask_worker import Answers, ask
from supervisor.commands.status import Queues, as_data, rows
from supervisor.configuration import Configuration, HttpListen, KafkaConnection
from supervisor.lag import Lag


def endpoint(name: str, *, enabled: bool = True) -> Endpoint:
    return Endpoint(
        tenant="acme", name=name, url="https://example.com/s3cret", topics=frozenset({"orders"}), enabled=enabled
    )


CONFIGURATION = Configuration(
    kafka=KafkaConnection(bootstrap_servers="k:9092"),
    endpoints=(endpoint("billing"), endpoint("crm"), endpoint("off", enabled=False)),
    tenants=("acme",),
)
BILLING = "webhooks.acme.billing.queue"
LOOP = {"tenant": "acme", "endpoint": "billing", "state": "halted", "reason": "rejections", "next_start_in_s": 3.0}
ANSWERED = Answers(address="127.0.0.1:8080", workers=({"pid": 1, "loops": [LOOP]},))
SILENT = Answers(address="127.0.0.1:8080", why="no worker answers at 127.0.0.1:8080")
QUEUES = Queues(lags={BILLING: Lag(first=3, waiting=7, lost=2)}, exact=frozenset({BILLING}))


def test_the_workers_word_and_kafkas_come_together() -> None:
    row = rows(CONFIGURATION, ANSWERED, QUEUES)[0]
    assert (row.state, row.reason, row.next_start_in_s) == ("halted", "rejections", 3.0)
    assert (row.lag, row.lost, row.exact, row.queue_exists) == (7, 2, True, True)


def test_an_endpoint_of_another_worker_and_a_missing_queue_are_told_so() -> None:
    row = rows(CONFIGURATION, ANSWERED, QUEUES)[1]
    assert (row.state, row.queue_exists, row.lag) == ("elsewhere", False, None)


def test_a_disabled_endpoint_is_shown_whether_or_not_a_worker_answers() -> None:
    for answers in (ANSWERED, SILENT):
        assert rows(CONFIGURATION, answers, QUEUES)[2].state == "disabled"


def test_without_a_worker_the_state_is_unknown_and_the_lag_is_not() -> None:
    row = rows(CONFIGURATION, SILENT, QUEUES)[0]
    assert (row.state, row.detail, row.lag) == ("unknown", "no worker answers at 127.0.0.1:8080", 7)


def test_without_kafka_it_is_not_known_whether_queues_exist() -> None:
    row = rows(CONFIGURATION, ANSWERED, Queues(lags={}, fault="away"))[0]
    assert (row.state, row.lag, row.queue_exists) == ("halted", None, None)


def test_for_programs_it_is_json_without_a_url() -> None:
    text = json.dumps(as_data(rows(CONFIGURATION, ANSWERED, QUEUES), ANSWERED, QUEUES))
    assert json.loads(text)["worker"]["answers"] is True
    assert "s3cret" not in text


def test_a_worker_on_a_port_of_the_systems_choice_cannot_be_asked() -> None:
    assert ask(HttpListen(port=0)).workers == ()
