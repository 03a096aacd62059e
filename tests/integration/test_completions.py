"""Shell completion with a real bash, with names that the cluster has, and what the other shells are given."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from latermq.cli.completions import MAX_NAMES, TIMEOUT_S, offered
from latermq.client import blocking
from tests.integration.client_cluster import client_cluster
from tests.interop.ports import HOST, free_port

BIN = Path(sys.executable).parent
# What bash does when Tab is pressed, with the words so far as arguments.
PRESS_TAB = """
source <(latermq --show-completion)
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
"$(complete -p latermq | sed 's/.*-F \\([^ ]*\\).*/\\1/')" latermq
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with client_cluster(tmp_path_factory.mktemp("completions")) as address:
        with blocking.Admin(address) as admin:
            for topic in ("orders", "orders-late", "pay|sleep", "payments"):
                admin.create_topic(topic, queues=1)
            admin.create_group("billing")
            admin.create_group("bookkeeping")
        yield address


def press_tab(namesrv: str, *words: str) -> list[str]:
    """What a real bash offers for the last of these words."""
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "NAMESRV_ADDR": namesrv}
    command = ["bash", "--norc", "-c", PRESS_TAB, "bash", "latermq", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def instruct(namesrv: str, instruction: str, words: str) -> str:
    """What the completion function of another shell gets from the program."""
    environment = {"_LATERMQ_COMPLETE": instruction, "_TYPER_COMPLETE_ARGS": words, "NAMESRV_ADDR": namesrv}
    environment["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    done = subprocess.run(
        [BIN / "latermq"], capture_output=True, text=True, env={**os.environ, **environment}, timeout=60, check=True
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["stat"], ["status"]),
        (["topic", "cre"], ["create"]),
        (["send", "--dela"], ["--delay"]),
        (["send", "ord"], ["orders", "orders-late"]),
        (["pending", "orders-"], ["orders-late"]),
        (["topic", "show", "pa"], ["payments"]),
        (["message", "print", "nothing"], []),
        (["consume", "orders", "--group", "b"], ["billing", "bookkeeping"]),
        (["group", "show", "boo"], ["bookkeeping"]),
        (["dlq", "list", "bil"], ["billing"]),
    ],
)
def test_bash_completes_commands_options_topics_and_groups(
    namesrv: str, words: Sequence[str], expected: list[str]
) -> None:
    assert press_tab(namesrv, *words) == expected


def test_the_name_server_on_the_command_line_is_asked(namesrv: str) -> None:
    nowhere = f"{HOST}:{free_port()}"
    assert press_tab(nowhere, "send", "--namesrv", namesrv, "orders-") == ["orders-late"]


def test_without_a_cluster_nothing_is_offered_and_soon() -> None:
    with socket.create_server((HOST, 0)) as silent:
        for place in (f"{HOST}:{free_port()}", f"{HOST}:{silent.getsockname()[1]}", "no address"):
            began_s = time.monotonic()
            assert press_tab(place, "send", "ord") == []
            assert time.monotonic() - began_s < TIMEOUT_S + 15  # two programs start, on a busy machine


def test_zsh_and_fish_are_given_the_names_and_a_script(namesrv: str) -> None:
    assert instruct(namesrv, "complete_zsh", "latermq send ord") == '_arguments \'*: :(("orders"\n"orders-late"))\'\n'
    assert instruct(namesrv, "complete_fish", "latermq group show b").split() == ["billing", "bookkeeping"]
    for shell, line in (("zsh", "compdef _latermq_completion latermq"), ("fish", "complete --command latermq")):
        script = instruct(namesrv, f"source_{shell}", "")
        assert line in script
        if found := shutil.which(shell):
            subprocess.run([found, "-n"], input=script, text=True, check=True, timeout=60)


def test_names_that_a_shell_would_not_read_as_one_word_are_not_offered() -> None:
    names = ["a|reboot", "a;b", "a b", "a$(b)", "a`b`", "a'", 'a"', "a\nb", "a\\", "a*", "ä", "a-b_C9", "a%"]
    assert offered(names, "a") == ["a%", "a-b_C9"]


def test_retry_topics_and_those_of_the_system_are_offered_only_to_who_asks() -> None:
    names = ["%RETRY%billing", "orders", "rmq_sys_wheel_timer"]
    assert offered(names, "") == ["orders"]
    assert offered(names, "%R") == ["%RETRY%billing"]
    assert offered(names, "rmq") == ["rmq_sys_wheel_timer"]
    assert len(offered((f"t{number}" for number in range(10_000)), "t")) == MAX_NAMES
