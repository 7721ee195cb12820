"""The command line: exit statuses, and words instead of tracebacks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from delivery.model import Endpoint
from supervisor.cli import Commands, cli
from supervisor.commands.drop import leftovers
from supervisor.commands.run import environment_of, listen_of
from supervisor.configuration import Configuration, HttpListen, KafkaConnection
from supervisor.failure import Failed, Misused

ROOT = Path(__file__).resolve().parents[2]
SECRET = "S3CRETS3CRET"
RIGHT = {
    "DELIVERY_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:9",
    "DELIVERY_REDIS__URL": "redis://127.0.0.1:9/0",
    "DELIVERY_TENANTS__ACME__ENDPOINTS__BILLING__URL": f"https://example.com/{SECRET}",
    "DELIVERY_TENANTS__ACME__ENDPOINTS__BILLING__TOPICS": "orders",
    "DELIVERY_TENANTS__ACME__ENDPOINTS__BILLING__SIGNING": "none",
}
PAUSE = ("endpoint", "pause", "acme", "billing")
SEND = ("send", "acme", "--topic", "orders", "--type", "order.paid", "--data")


def typed(*arguments: str, settings: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command as a process, with these settings and no others."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("DELIVERY_")}
    return subprocess.run(
        [sys.executable, "-m", "supervisor", *arguments],
        cwd=ROOT,
        env={**kept, **(settings or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def invoked(*arguments: str, settings: Mapping[str, str] | None = None) -> Result:
    """The command within this process."""
    cleared: dict[str, str | None] = {name: None for name in os.environ if name.upper().startswith("DELIVERY_")}
    return CliRunner().invoke(cli, list(arguments), env={**cleared, **(settings or {})})


def failing(error: Exception) -> Result:
    @click.group(cls=Commands)
    def group() -> None:
        pass

    @group.command()
    def fail() -> None:
        raise error

    return CliRunner().invoke(group, ["fail"])


def test_help_lists_the_commands_without_any_settings() -> None:
    ended = invoked("--help")
    assert ended.exit_code == 0
    for command in ("run", "demo", "check", "send", "status", "endpoint", "dead-letters"):
        assert f"\n  {command} " in ended.output


@pytest.mark.parametrize("command", ["run", "demo", "check", "send", "status"])
def test_each_command_has_help_without_any_settings(command: str) -> None:
    assert invoked(command, "--help").exit_code == 0


@pytest.mark.parametrize("command", ["list", "show", "replay"])
def test_each_command_for_dead_letters_has_help_without_any_settings(command: str) -> None:
    assert invoked("dead-letters", command, "--help").exit_code == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--rate", "0"), "--rate"),
        (("--limit", "0"), "--limit"),
        (("--all",), "--all: letters that were sent again are sent once more only with --again"),
        (("--to", "billing"), "--to: expected together with one --tenant"),
        (("--tenant", "acme", "--to", "crm"), "--to: expected an endpoint of acme (billing)"),
        (("--status", "4"), "--status: expected a status or a class"),
        (("--since", "noon"), "--since: expected a time"),
    ],
)
def test_a_replay_that_cannot_be_meant_is_refused_before_kafka_is_asked(options: tuple[str, ...], said: str) -> None:
    ended = invoked("dead-letters", "replay", "--yes", *options, settings=RIGHT)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert said in ended.stderr


@pytest.mark.parametrize("order", ["pause", "resume", "cancel", "drain", "drop"])
def test_each_order_has_help_without_any_settings(order: str) -> None:
    assert invoked("endpoint", order, "--help").exit_code == 0


def test_the_version_is_one_line() -> None:
    ended = invoked("--version")
    assert (ended.exit_code, ended.output.split()[0], len(ended.output.split())) == (0, "delivery", 2)


def test_help_imports_neither_kafka_nor_the_settings() -> None:
    looked = "import sys, supervisor.cli; print([m for m in ('aiokafka', 'aiohttp', 'pydantic') if m in sys.modules])"
    ended = subprocess.run(
        [sys.executable, "-c", looked], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "arguments",
    [("deliver",), ("run", "--process", "x"), ("run", "--processes", "0"), ("send", "acme"), ("status", "extra")],
)
def test_wrong_usage_ends_with_2(arguments: tuple[str, ...]) -> None:
    assert invoked(*arguments, settings=RIGHT).exit_code == 2


@pytest.mark.parametrize("command", [("run",), ("check",), ("status",), (*SEND, "{}"), PAUSE])
def test_wrong_settings_end_with_2_and_one_line_each_without_traceback_or_secret(command: tuple[str, ...]) -> None:
    wrong = {
        **RIGHT,
        "DELIVERY_TENANTS__ACME__ENDPOINTS__BILLING__SECRETS": f"whsec_{SECRET}",
        "DELIVERY_TENANTS__ACME__ENDPOINTS__BILLING__URL": f"https://user:{SECRET}@example.com/",
        "DELIVERY_SWEEP_SECONDS": "5",
    }
    ended = typed(*command, settings=wrong)
    assert ended.returncode == 2
    assert ended.stdout == ""
    faults = ended.stderr.splitlines()
    assert len(faults) >= 3
    assert all(fault.startswith("DELIVERY_") for fault in faults)
    assert SECRET not in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("check",),
        ("status",),
        (*SEND, "{}"),
        PAUSE,
        ("endpoint", "resume", "acme", "billing"),
        ("endpoint", "cancel", "acme", "billing"),
        ("endpoint", "drain", "acme", "billing"),
        ("endpoint", "drop", "acme", "old", "--yes"),
    ],
)
def test_kafka_away_ends_with_1_and_one_line_that_names_the_setting(command: tuple[str, ...]) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        settings = {**RIGHT, "DELIVERY_KAFKA__BOOTSTRAP_SERVERS": address, "DELIVERY_HTTP__LISTEN": "127.0.0.1:0"}
        ended = typed(*command, settings=settings)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert "DELIVERY_KAFKA__BOOTSTRAP_SERVERS" in line
    assert address in line


def test_a_failure_is_one_line_and_1() -> None:
    ended = failing(Failed("no such topic"))
    assert (ended.exit_code, ended.output) == (1, "delivery: no such topic\n")


def test_misuse_is_a_line_for_each_fault_and_2() -> None:
    ended = failing(Misused(["one", "two"]))
    assert (ended.exit_code, ended.output) == (2, "one\ntwo\n")


def test_a_bug_is_one_line_that_says_where_and_shows_no_text() -> None:
    ended = failing(ValueError(SECRET))
    assert ended.exit_code == 1
    assert ended.output.startswith("delivery: unexpected ValueError at test_cli.py:")
    assert SECRET not in ended.output
    assert len(ended.output.splitlines()) == 1


@pytest.mark.parametrize("data", ["{", "", "{'a': 1}", "NaN", '{"a": Infinity}', "@/no/such/file"])
def test_an_event_must_be_json(data: str) -> None:
    ended = invoked(*SEND, data, settings=RIGHT)
    assert ended.exit_code == 2
    assert ended.output.startswith("--data: ")
    assert len(ended.output.splitlines()) == 1


def test_an_event_must_be_of_a_configured_tenant_and_its_id_must_be_one() -> None:
    ended = invoked(
        "send", "zoo", "--topic", "orders", "--type", "t", "--data", "1", "--id", "not an id", settings=RIGHT
    )
    assert ended.exit_code == 2
    assert [line.split(":")[0] for line in ended.output.splitlines()] == ["TENANT", "--id"]
    assert "acme" in ended.output


@pytest.mark.parametrize("order", ["pause", "resume", "cancel", "drain"])
@pytest.mark.parametrize(("names", "known"), [(("zoo", "billing"), "acme"), (("acme", "biling"), "billing")])
def test_an_order_for_a_wrong_name_says_which_there_are(order: str, names: tuple[str, str], known: str) -> None:
    ended = invoked("endpoint", order, *names, settings=RIGHT)
    assert ended.exit_code == 2
    assert ended.output.startswith(("TENANT: ", "ENDPOINT: "))
    assert f"({known})" in ended.output


def test_an_endpoint_that_is_configured_is_not_dropped() -> None:
    ended = invoked("endpoint", "drop", "acme", "billing", "--yes", settings=RIGHT)
    assert ended.exit_code == 2
    assert "acme/billing is configured" in ended.output


@pytest.mark.parametrize("arguments", [("resume", "--from", "middle"), ("cancel", "--everything"), ("stop",)])
def test_an_order_that_there_is_not_ends_with_2(arguments: tuple[str, ...]) -> None:
    assert invoked("endpoint", *arguments, "acme", "billing", settings=RIGHT).exit_code == 2


def test_only_queues_of_endpoints_that_are_configured_no_more_are_left_over() -> None:
    topics = frozenset(
        {
            "p.acme.billing.queue", "p.acme.old.queue", "p.zoo.crm.queue", "p.acme.dead-letters", "p.control",
            "p.q.acme.billing.queue", "q.acme.old.queue", "orders", "p.queue", "p.x.queue",
        }
    )  # fmt: skip
    billing = Endpoint(tenant="acme", name="billing", url="https://example.com/", topics=frozenset({"orders"}))
    configuration = Configuration(
        kafka=KafkaConnection(bootstrap_servers="k:9092"), prefix="p", endpoints=(billing,), tenants=("acme",)
    )
    assert leftovers(configuration, topics) == ["acme/old", "zoo/crm"]


def test_processes_listen_on_one_port_after_the_other() -> None:
    http = HttpListen(host="127.0.0.1", port=8080, token=SECRET)
    assert [listen_of(http, index).port for index in range(3)] == [8080, 8081, 8082]
    assert listen_of(http, 1).token == SECRET


def test_processes_on_a_port_that_the_system_chooses_each_get_their_own() -> None:
    assert listen_of(HttpListen(port=0), 5).port == 0


def test_more_processes_than_ports_are_wrong_settings() -> None:
    with pytest.raises(Misused, match="DELIVERY_HTTP__LISTEN"):
        listen_of(HttpListen(port=65_535), 1)


def test_a_child_has_the_settings_of_its_parent_and_an_address_of_its_own() -> None:
    environ = {"PATH": "/bin", "delivery_http__listen": "0.0.0.0:1", **RIGHT}
    found = environment_of(environ, HttpListen(host="::1", port=8081))
    assert found == {"PATH": "/bin", **RIGHT, "DELIVERY_HTTP__LISTEN": "[::1]:8081"}
