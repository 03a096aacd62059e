"""Every kind of request of every kind of client, signed by RocketMQ's own hook: LaterMQ answers as Apache's broker.

`apache_access_answers.json` has Apache's answers. With LATERMQ_LONG=1 they are compared with those of a running broker.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.access_scene import CLIENTS, answers_of, as_text, from_text
from tests.interop.programs import start_java
from tests.interop.target import Cluster, running_cluster_with_users
from tests.support.needs import LONG

RECORDED = Path(__file__).parent / "apache_access_answers.json"
DOCS = Path(__file__).parents[2] / "docs" / "security.md"
SERVED = "served"
# Apache's broker serves these requests of every user that can sign.
UNCHECKED_BY_APACHE = {
    "18", "21", "25", "26", "28", "43", "200", "201", "225", "305", "306", "316", "329", "361", "400", "401", "907",
    "200151",
}  # fmt: skip
# LaterMQ also asks for a right to the topic of the stored message, and to the group that is copied from.
WIDER_THAN_APACHE = {"36", "314"}
Answers = dict[str, dict[str, str]]


def ask_all(cluster: Cluster, folder: Path) -> Answers:
    with start_java(folder / "java.log", {"namesrv": cluster.namesrv}, log_level="OFF") as java:
        return answers_of(java, cluster)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    folder = tmp_path_factory.mktemp("cluster")
    with running_cluster_with_users(folder / "data", is_apache=False) as cluster:
        yield ask_all(cluster, folder)


@pytest.fixture(scope="module")
def recorded() -> Answers:
    return from_text(RECORDED.read_text())


def test_all_other_answers_are_those_of_apache(answers: Answers, recorded: Answers) -> None:
    stricter = UNCHECKED_BY_APACHE | WIDER_THAN_APACHE
    ours, apaches = (
        {(case, client): answer for case, by in some.items() if case not in stricter for client, answer in by.items()}
        for some in (answers, recorded)
    )
    assert ours == apaches
    assert len(set(ours.values())) > 50, "the answers differ from one another"


@pytest.mark.parametrize("client", CLIENTS)
def test_where_latermq_is_stricter_it_names_what_is_missing(answers: Answers, recorded: Answers, client: str) -> None:
    for case in UNCHECKED_BY_APACHE | WIDER_THAN_APACHE:
        ours, apaches = answers[case][client], recorded[case][client]
        if ours != apaches:
            assert apaches == SERVED, (case, ours)
            assert ours.startswith(f"16 User:{CLIENTS[client].user} has no permission to access ") or case == "25"


def test_each_request_in_the_list_of_stricter_ones_is_stricter(answers: Answers, recorded: Answers) -> None:
    for case in UNCHECKED_BY_APACHE:
        assert recorded[case]["no policy"] == SERVED, case
        assert answers[case]["no policy"].startswith("16 User:nobody has no permission"), case
        assert answers[case]["super user"] == SERVED or case == "25", case
    for case in WIDER_THAN_APACHE:
        assert answers[case] != recorded[case], case
    assert answers["361"] == answers["11"], "a lite pull needs what a pull needs"
    assert "no permission" not in answers["25"]["super user"], "it is refused because settings are fixed"


def test_the_page_about_security_has_the_list_of_stricter_requests() -> None:
    listed = DOCS.read_text().partition("Stricter than RocketMQ 5.5.0:")[2].partition("## ")[0]
    assert set(re.findall(r"\b\d{2,6}\b", listed)) >= UNCHECKED_BY_APACHE | WIDER_THAN_APACHE


@pytest.mark.skipif(not LONG, reason="starts Apache RocketMQ; LATERMQ_LONG=1 runs it")
def test_apache_answers_as_recorded(tmp_path: Path) -> None:
    """To record anew, copy the file that the failure names."""
    with running_cluster_with_users(tmp_path / "data", is_apache=True) as cluster:
        text = as_text(ask_all(cluster, tmp_path))
    (tmp_path / RECORDED.name).write_text(text)
    assert text == RECORDED.read_text(), f"compare with {tmp_path / RECORDED.name}"
