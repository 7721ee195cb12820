"""The commands as a person or a unit file starts them: wrong settings, and the short way of one event."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from supervisor.demo.scripts import always, reply, sequence
from tests.acceptance.harness import KEY, SECRET, System, free_port, until

PLACE = "DELIVERY_TENANTS__ACME__ENDPOINTS__BILLING__"
LEAK = "sUpErSeCrEt"
TOKEN_PATH = f"/hooks/{LEAK}"

# What to set (None: to take away), and the variable that the one line must name; empty for the variable itself.
Wrong = tuple[str, str | None, str]

WRONG: list[Wrong] = [
    ("DELIVERY_KAFKA__BOOTSTRAP_SERVERS", None, ""),
    ("DELIVERY_KAFKA__BOOTSTRAP_SERVERS", "kafka", ""),
    ("DELIVERY_KAFKA__SECURITY_PROTOCOL", "TLS", ""),
    ("DELIVERY_REDIS__URL", None, ""),
    ("DELIVERY_REDIS__URL", f"http://:{LEAK}@redis", ""),
    ("DELIVERY_TOPIC_PREFIX", "two words", ""),
    ("DELIVERY_HTTP__LISTEN", "8080", ""),
    ("DELIVERY_HTTP__TOKEN", f"{LEAK} x", ""),
    ("DELIVERY_START", "newest", ""),
    ("DELIVERY_SWEEP_S", "0", ""),
    ("DELIVERY_SESSION_TIMEOUT_S", "5", ""),
    ("DELIVERY_LOG__LEVEL", "loud", ""),
    ("DELIVERY_TENANTS", "", ""),
    ("DELIVERY_TENANTS", f'{{"acme": "{LEAK}"', ""),
    ("DELIVERY_TENANTS_FILE", f"/nowhere/{LEAK}", ""),
    ("DELIVERY_SWEEEP_S", "1", ""),
    (f"{PLACE}URL", None, ""),
    (f"{PLACE}URL", f"https://user:{LEAK}@example.com/", ""),
    (f"{PLACE}URL", f"ftp://example.com/{LEAK}", ""),
    (f"{PLACE}URL", f"https://[::ffff:127.0.0.1]/{LEAK}", ""),
    (f"{PLACE}URL", f"https://169.254.169.254/{LEAK}", ""),
    (f"{PLACE}URL", f"https://0x7f000001/{LEAK}", ""),
    (f"{PLACE}TOPICS", None, ""),
    (f"{PLACE}TOPICS", "'[\"orders\"]'", ""),
    (f"{PLACE}TOPICZ", "orders", ""),
    (f"{PLACE}SECRETS", None, ""),
    (f"{PLACE}SECRETS", f"whsec_{LEAK}!", ""),
    (f"{PLACE}SECRETS", "whsec_eA==", ""),
    (f"{PLACE}SECRETS_FILE", "/nowhere/key", f"{PLACE}SECRETS"),  # beside SECRETS, which it would replace
    (f"{PLACE}HEADERS", f'{{"Webhook-Id": "{LEAK}"}}', ""),
    (f"{PLACE}HEADERS", f'{{"x-token": "{LEAK}\\n"}}', ""),
    (f"{PLACE}TIMEOUT_S", "nan", ""),
    (f"{PLACE}TIMEOUT_S", "15s", ""),
    (f"{PLACE}RETRY__MAX_ATTEMPTS", "0", ""),
    (f"{PLACE}RETRY__SCHEDULE", "5x", ""),
    (f"{PLACE}STATUSES", "202=rejected", ""),
    (f"{PLACE}ENABLED", "yes", ""),
    (f"{PLACE}RATE", "10", ""),
    (f"{PLACE}CA_FILE", "/nowhere/ca.pem", ""),
    ("DELIVERY_TENANTS__ACME__EU__URL", "https://example.com", ""),
    ("DELIVERY_TENANTS__BIG__CO__TIMEOUT_S", "5", ""),
]


def _right(system: System) -> dict[str, str]:
    return {
        "DELIVERY_KAFKA__BOOTSTRAP_SERVERS": system.bootstrap,
        "DELIVERY_REDIS__URL": system.redis,
        f"{PLACE}URL": f"https://example.com{TOKEN_PATH}",
        f"{PLACE}TOPICS": "orders",
        f"{PLACE}SECRETS": SECRET,
    }


async def _said(system: System, command: str, wrong: Wrong) -> tuple[int, str, str]:
    variable, value, _ = wrong
    settings = _right(system)
    settings.pop(variable, None)
    system.settings = settings | ({} if value is None else {variable: value})
    return await system.command(command)


def _complaint(wrong: Wrong, status: int, out: str, said: str) -> str | None:
    """What is not as it should be; None when everything is."""
    variable, value, named = wrong
    lines = said.splitlines()
    why = None
    if status != 2:
        why = f"exit {status}"
    elif out:
        why = f"wrote {out!r} to standard output"
    elif len(lines) != 1:
        why = f"{len(lines)} lines"
    elif not lines[0].startswith(f"{named or variable}: "):
        why = "does not begin with the variable"
    elif "Traceback" in said or ".py" in said:
        why = "shows a stack"
    elif any(secret in said for secret in (LEAK, KEY, SECRET)):
        why = "shows a secret"
    return None if why is None else f"{variable}={value!r}: {why}: {said}"


@pytest.mark.asyncio
async def test_each_kind_of_wrong_setting_is_one_line_with_its_variable_and_exit_2(system: System) -> None:
    assert len({(variable, value) for variable, value, _ in WRONG}) >= 20
    some_at_once = asyncio.Semaphore(3)

    async def complaint(number: int, one: Wrong) -> str | None:
        async with some_at_once:
            return _complaint(one, *await _said(system, "run" if number % 2 else "check", one))

    complaints = await asyncio.gather(*(complaint(number, one) for number, one in enumerate(WRONG)))
    assert [found for found in complaints if found is not None] == []


@pytest.mark.asyncio
async def test_all_faults_are_told_at_once_each_on_its_own_line(system: System) -> None:
    faults = {
        "DELIVERY_SWEEP_S": "0",
        "DELIVERY_HTTP_PORT": "1",
        f"{PLACE}TIMEOUT_S": "-1",
        f"{PLACE}SECRETS": f"whsec_{LEAK}!",
        "DELIVERY_TENANTS__GLOBEX__ENDPOINTS__A__URL": "nowhere",
    }
    system.settings = _right(system) | faults

    status, out, said = await system.command("run")

    assert (status, out) == (2, "")
    lines = said.splitlines()
    for variable in faults:
        assert sum(line.startswith(f"{variable}: ") for line in lines) == 1, said
    assert LEAK not in said
    # The half-made endpoint lacks topics and secrets too.
    assert len(lines) <= len(faults) + 2


@pytest.mark.asyncio
async def test_a_loopback_url_is_one_line_that_lists_everything_missing_to_allow_it(system: System) -> None:
    system.settings = _right(system) | {f"{PLACE}URL": f"http://127.0.0.1:9000{TOKEN_PATH}"}

    status, _, said = await system.command("run")

    assert status == 2
    (line,) = said.splitlines()
    assert line.startswith(f"{PLACE}URL: ")
    for needed in ("ALLOW_HTTP=true", "ALLOW_PORTS=9000", "ALLOW_NETWORKS=127.0.0.0/8"):
        assert needed in line
    assert LEAK not in line


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "arguments",
    [("deliver",), ("send", "acme"), ("run", "--processes", "0"), ("status", "--yaml")],
    ids=lambda arguments: " ".join(arguments),
)
async def test_wrong_usage_is_exit_2_without_a_traceback(system: System, arguments: tuple[str, ...]) -> None:
    status, out, said = await system.command(*arguments)
    assert (status, out) == (2, "")
    assert "Traceback" not in said


@pytest.mark.asyncio
async def test_kafka_that_does_not_answer_is_exit_1_and_names_the_setting(system: System) -> None:
    system.settings = _right(system) | {"DELIVERY_KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}"}
    for arguments in (("check",), ("send", "acme", "--topic", "orders", "--type", "a", "--data", "{}"), ("status",)):
        status, _, said = await system.command(*arguments)
        assert status == 1
        (line,) = said.splitlines()
        assert "DELIVERY_KAFKA__BOOTSTRAP_SERVERS" in line


@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_from_an_empty_kafka_to_a_delivered_event_by_commands_alone(system: System) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "billing", topic, EVENT_TYPES="order.*")
    other = system.endpoint("acme", "later", topic, ENABLED="false")
    system.server.script(path, sequence([reply(500), reply(204)]))
    system.server.script(other, always(204))
    system.settings["DELIVERY_OWN_TOPICS__CREATE"] = "false"
    send = ("send", "acme", "--topic", topic, "--type", "order.paid", "--data", '{"n": 1.0}')

    status, out, _ = await system.command("check")
    assert (status, out.count("does not exist")) == (1, 5), out
    status, _, said = await system.command(*send)
    assert (status, topic in said) == (1, True), said
    assert topic not in await (await system.admin()).list_topics(), "send does not create a source topic"

    await system.create(topic)
    status, out, _ = await system.command("check", "--create-topics")
    assert (status, out.count("created")) == (0, 4), out
    status, out, _ = await system.command("check")
    assert (status, "does not exist" in out) == (0, False), out
    for operation in ("Read", "Write", "transactional-id", f"{system.prefix}."):
        assert operation in out, "the ACLs that are needed"

    worker = await system.run()
    status, out, _ = await system.command(*send, "--id", "order_17")
    assert status == 0
    assert out.splitlines() == [
        f"order_17 written to {topic}, partition 0, offset 0",
        "for acme/billing",
        "for acme/later (not enabled: queued, not sent)",
    ]
    await system.server.arrived(path, 2, 15)
    assert system.server.order(path) == ["order_17"] * 2
    assert [seen.body for seen in system.server.requests(path)] == [b'{"n": 1.0}'] * 2

    listen = f"127.0.0.1:{worker.port}"

    async def settled() -> bool:
        found = json.loads((await system.command("status", "--json", DELIVERY_HTTP__LISTEN=listen))[1])
        # The lag is Kafka's, the state the board's, which may be a little behind.
        return [(row["state"], row["lag"]) for row in found["endpoints"]] == [("running", 0), ("disabled", 1)]

    await until(settled, 20, "the lag of both queues is what waits in them")
    status, out, said = await system.command("status", "--json", DELIVERY_HTTP__LISTEN=listen)
    assert (status, said) == (0, "")
    found = json.loads(out)
    assert found["kafka"]["answers"] is True
    assert found["worker"]["answers"] is True
    rows = {row["endpoint"]: row for row in found["endpoints"]}
    assert (rows["billing"]["state"], rows["billing"]["lag"]) == ("running", 0)
    assert (rows["later"]["state"], rows["later"]["lag"], rows["later"]["exact"]) == ("disabled", 1, True)
    assert rows["billing"]["queue"] == system.queue("acme", "billing")
    status, out, _ = await system.command("status", DELIVERY_HTTP__LISTEN=listen)
    assert (status, "billing" in out, "disabled" in out) == (0, True, True)

    assert await worker.stop() == 0
    status, out, _ = await system.command("status", "--json", DELIVERY_HTTP__LISTEN=listen)
    found = json.loads(out)
    assert (status, found["worker"]["answers"]) == (0, False)
    assert [row["lag"] for row in found["endpoints"]] == [0, 1], "lag comes from Kafka, with no worker at all"


@pytest.mark.asyncio
async def test_nw09_nw11_proxy_variables_of_the_environment_change_nothing(system: System) -> None:
    path = system.endpoint("acme", "a", system.source("orders"))
    system.server.script(path, always(204))
    await system.create(system.source("orders"))
    nowhere = f"socks5://127.0.0.1:{free_port()}"
    proxies = dict.fromkeys(("HTTP_PROXY", "https_proxy", "ALL_PROXY", "http_proxy"), nowhere)
    await system.run(**proxies, NO_PROXY="10.0.0.0/8,::1,*.svc")
    await system.produce(system.source("orders"), [b"{}"])

    await system.server.arrived(path, 1, 15)


@pytest.mark.asyncio
async def test_cf05_a_kubernetes_service_named_delivery_injects_nothing_that_stops_the_start(system: System) -> None:
    system.settings = _right(system)
    injected = {
        "DELIVERY_SERVICE_HOST": "10.0.0.1",
        "DELIVERY_SERVICE_PORT": "8080",
        "DELIVERY_SERVICE_PORT_HTTP": "8080",
        "DELIVERY_PORT": "tcp://10.0.0.1:8080",
        "DELIVERY_PORT_8080_TCP_ADDR": "10.0.0.1",
    }
    status, _, said = await system.command("check", **injected)
    assert (status, said) == (1, ""), "it looked at Kafka, where the topics are missing"


@pytest.mark.asyncio
async def test_several_processes_share_the_work_and_end_together(system: System) -> None:
    topic = system.source("orders")
    paths = [system.endpoint("acme", f"e{n}", topic) for n in range(4)]
    for path in paths:
        system.server.script(path, always(204))
    await system.create(topic)
    port = free_port()
    environ = system.settings | {"DELIVERY_HTTP__LISTEN": f"127.0.0.1:{port}", "PATH": "/usr/bin:/bin"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "supervisor", "run", "--processes", "2", env=environ,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        ids = await system.produce(topic, [b"{}"] * 20)
        for path in paths:
            await system.server.arrived(path, 20, 40)
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 30) == 0
    finally:
        if process.returncode is None:
            process.kill()
    for path in paths:
        assert system.server.ids(path) == ids
