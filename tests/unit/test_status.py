"""`delivery status`: what is shown of each endpoint, from what Kafka, the live board and a worker say."""

from __future__ import annotations

import dataclasses
import json

import pytest

from delivery.board import BoardSeen, EndpointState, WorkerEntry
from delivery.model import Endpoint
from delivery.naming import queue_owner, queue_topic
from supervisor.commands.ask_worker import Answers, ask
from supervisor.commands.queues import Queues, Waiting, removed_queues
from supervisor.commands.status import Seen, as_data, duration_text
from supervisor.commands.status_rows import Row, rows
from supervisor.configuration import Configuration, HttpListen, KafkaConnection
from supervisor.lag import Lag


def endpoint(name: str, *, enabled: bool = True) -> Endpoint:
    return Endpoint(
        tenant="acme", name=name, url="https://example.com/s3cret", topics=frozenset({"orders"}), enabled=enabled
    )


NOW = 1_800_000_000.0
CONFIGURATION = Configuration(
    kafka=KafkaConnection(bootstrap_servers="k:9092"),
    endpoints=(endpoint("billing"), endpoint("crm"), endpoint("off", enabled=False)),
    tenants=("acme",),
)
BILLING = "webhooks.acme.billing.queue"
CRM = "webhooks.acme.crm.queue"
LOOP = {"tenant": "acme", "endpoint": "billing", "state": "halted", "reason": "rejections", "next_start_in_s": 3.0}
ANSWERED = Answers(address="127.0.0.1:8080", workers=({"pid": 1, "loops": [LOOP]},))
SILENT = Answers(address="127.0.0.1:8080", why="no worker answers at 127.0.0.1:8080")
WAITING = Waiting(lag=Lag(first=3, waiting=7, lost=2), exact=True, oldest_ms=int((NOW - 90) * 1000))
QUEUES = Queues(waiting={BILLING: WAITING})
BOTH = Queues(waiting={BILLING: WAITING, CRM: Waiting(lag=Lag(first=0, waiting=0, lost=0), exact=True)})
WORKER = WorkerEntry(worker="w1", host="here", pid=1, since=NOW - 1000)
HALTED = EndpointState(
    tenant="acme",
    endpoint="billing",
    state="halted",
    worker="w1",
    host="here",
    reason="failing",
    detail="503",
    since=NOW - 60,
    next_start_at=NOW + 4.5,
    streak=1,
    attempts=6,
)
EMPTY = BoardSeen(living={}, states={})
ALIVE = BoardSeen(living={"w1": WORKER}, states={("acme", "billing"): HALTED})
KILLED = dataclasses.replace(ALIVE, living={"w2": dataclasses.replace(WORKER, worker="w2")})


def first(queues: Queues, board: BoardSeen | None, answers: Answers = SILENT) -> Row:
    return rows(CONFIGURATION, queues, board, answers, NOW)[0]


def test_the_owners_word_on_the_board_is_shown_with_what_kafka_says() -> None:
    assert first(BOTH, ALIVE) == Row(
        tenant="acme",
        endpoint="billing",
        state="halted",
        reason="failing",
        detail="503",
        since=NOW - 60,
        next_start_in_s=4.5,
        streak=1,
        attempts=6,
        host="here",
        worker="w1",
        queue=BILLING,
        queue_exists=True,
        lag=7,
        exact=True,
        lost=2,
        oldest_event_age_s=90.0,
    )


def test_an_owner_that_is_no_longer_on_the_board_is_lost_and_what_it_said_last_is_told_as_such() -> None:
    row = first(BOTH, KILLED)
    assert (row.state, row.reason, row.next_start_in_s) == ("owner lost", "", None)
    assert row.detail == "last known as halted: failing: 503"
    assert (row.host, row.worker, row.lag) == ("here", "w1", 7)


def test_an_owner_that_only_redis_does_not_hear_is_believed_when_it_answers_itself() -> None:
    row = first(BOTH, KILLED, ANSWERED)
    assert (row.state, row.reason, row.next_start_in_s) == ("halted", "rejections", 3.0)


def test_a_due_time_that_has_passed_is_now() -> None:
    late = dataclasses.replace(ALIVE, states={("acme", "billing"): dataclasses.replace(HALTED, next_start_at=NOW - 9)})
    assert first(BOTH, late).next_start_in_s == 0.0


def test_a_queue_that_nobody_has_taken_over_has_no_owner() -> None:
    assert rows(CONFIGURATION, BOTH, ALIVE, SILENT, NOW)[1].state == "no owner"


def test_without_any_worker_the_state_is_unknown_and_the_lag_is_not() -> None:
    row = first(QUEUES, EMPTY)
    assert (row.state, row.detail, row.lag) == ("unknown", "no worker runs", 7)


def test_a_missing_and_a_misconfigured_queue_are_told_so() -> None:
    missing = rows(CONFIGURATION, QUEUES, ALIVE, SILENT, NOW)[1]
    assert (missing.state, missing.reason, missing.queue_exists) == ("halted", "queue_missing", False)
    wrong = dataclasses.replace(BOTH, troubles={CRM: "has 2 partitions, a queue has one"})
    row = rows(CONFIGURATION, wrong, ALIVE, SILENT, NOW)[1]
    assert (row.state, row.reason, row.detail) == ("halted", "queue_misconfigured", "has 2 partitions, a queue has one")


@pytest.mark.parametrize("board", [None, EMPTY, ALIVE])
@pytest.mark.parametrize("answers", [ANSWERED, SILENT])
def test_a_disabled_endpoint_is_shown_whoever_answers(board: BoardSeen | None, answers: Answers) -> None:
    assert rows(CONFIGURATION, QUEUES, board, answers, NOW)[2].state == "disabled"


def test_without_redis_the_workers_word_and_kafkas_come_together() -> None:
    row = first(QUEUES, None, ANSWERED)
    assert (row.state, row.reason, row.next_start_in_s) == ("halted", "rejections", 3.0)
    assert (row.lag, row.lost, row.exact, row.queue_exists) == (7, 2, True, True)


def test_without_redis_an_endpoint_of_another_worker_is_told_so() -> None:
    row = rows(CONFIGURATION, QUEUES, None, ANSWERED, NOW)[1]
    assert (row.state, row.queue_exists, row.lag) == ("elsewhere", False, None)


def test_without_redis_and_without_a_worker_the_state_is_unknown_and_the_lag_is_not() -> None:
    row = first(QUEUES, None)
    assert (row.state, row.detail, row.lag) == ("unknown", "no worker answers at 127.0.0.1:8080", 7)


def test_without_kafka_it_is_not_known_whether_queues_exist() -> None:
    for board in (None, ALIVE):
        row = first(Queues(waiting={}, fault="away"), board, ANSWERED)
        assert (row.state, row.lag, row.queue_exists) == ("halted", None, None)


def test_the_queue_of_a_removed_endpoint_is_listed_behind_the_others() -> None:
    old = "webhooks.acme.old.queue"
    queues = Queues(waiting={**BOTH.waiting, old: WAITING}, removed={old: ("acme", "old")})
    for board in (None, ALIVE):
        row = rows(CONFIGURATION, queues, board, SILENT, NOW)[-1]
        assert (row.tenant, row.endpoint, row.state, row.queue, row.lag) == ("acme", "old", "removed endpoint", old, 7)


@pytest.mark.parametrize("prefix", ["webhooks", "a.b"])
def test_a_queue_is_told_by_its_name_from_the_topics_of_others(prefix: str) -> None:
    configuration = dataclasses.replace(CONFIGURATION, prefix=prefix)
    old = queue_topic(prefix, "big-co", "old")
    names = [
        old,
        queue_topic(prefix, "acme", "billing"),
        queue_topic(f"{prefix}.eu", "acme", "old"),
        queue_topic(f"x{prefix}", "acme", "old"),
        f"{prefix}.acme.dead-letters",
        f"{prefix}.control",
        f"{prefix}..old.queue",
        "orders",
    ]
    assert queue_owner(prefix, old) == ("big-co", "old")
    assert removed_queues(configuration, names) == {old: ("big-co", "old")}


def test_for_programs_it_is_json_without_a_url() -> None:
    configuration = dataclasses.replace(CONFIGURATION, redis_url="redis://:s3cret@r/0")
    seen = Seen(answers=ANSWERED, queues=QUEUES, board=ALIVE)
    text = json.dumps(as_data(rows(configuration, QUEUES, ALIVE, ANSWERED, NOW), seen))
    found = json.loads(text)
    assert (found["worker"]["answers"], found["kafka"]["answers"], found["redis"]["answers"]) == (True, True, True)
    assert found["workers"] == [{"worker": "w1", "host": "here", "pid": 1, "since": NOW - 1000}]
    assert "s3cret" not in text


def test_redis_away_is_noted() -> None:
    seen = Seen(answers=ANSWERED, queues=QUEUES, note="DELIVERY_REDIS__URL: it is away")
    found = as_data(rows(CONFIGURATION, QUEUES, None, ANSWERED, NOW), seen)
    assert found["redis"] == {"answers": False, "why": "DELIVERY_REDIS__URL: it is away"}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (0.4, "0 s"), (59.9, "59 s"), (61, "1 min 1 s"), (7500, "2 h 5 min"), (86_400 * 3 + 59, "3 d")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_a_worker_on_a_port_of_the_systems_choice_cannot_be_asked() -> None:
    assert ask(HttpListen(port=0)).workers == ()


def test_a_queue_whose_readers_stand_behind_an_open_transaction_is_told_so_beside_its_state() -> None:
    row, other = rows(CONFIGURATION, dataclasses.replace(BOTH, held_up=frozenset({BILLING})), ALIVE, SILENT, NOW)[:2]
    assert (row.behind_open_transaction, other.behind_open_transaction) == (True, False)
    assert (row.state, row.lag) == ("halted", 7)
