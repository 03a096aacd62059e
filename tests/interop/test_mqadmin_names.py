"""Apache's own mqadmin with names that are paths: nothing but topics is deleted."""

from pathlib import Path

import pytest

from tests.interop.mqadmin import MqAdmin
from tests.interop.programs import start_java
from tests.interop.target import IS_APACHE
from tests.support.serving import serving


@pytest.mark.skipif(IS_APACHE, reason="Apache's broker deletes what such a name leads to")
def test_mqadmin_deletes_no_folder_that_is_no_topic(tmp_path: Path) -> None:
    data, victim = tmp_path / "data", tmp_path / "victim"
    victim.mkdir()
    (victim / "savings").write_text("all of it")
    with serving(data) as server, start_java(tmp_path / "java.log", {}, log_level="OFF") as program:
        admin = MqAdmin(program, server.namesrv)
        admin.run("updateTopic", "-b", server.broker, "-t", "orders", "-r", "1", "-w", "1")
        admin.run("sendMessage", "-t", "orders", "-p", "body")
        for name in ("../../victim", "../commitlog"):
            assert "CODE: 29 " in admin.refused("deleteTopic", "-c", "DefaultCluster", "-t", name)
        assert (victim / "savings").read_text() == "all of it"
        assert list((data / "commitlog").iterdir())
        assert "deleted" not in server.log()
        printed = admin.run("deleteTopic", "-c", "DefaultCluster", "-t", "orders")
        assert "delete topic [orders] from cluster [DefaultCluster] success" in printed
        assert not (data / "consumequeue" / "orders").exists()
        [of_name_server, of_broker] = sorted(line for line in server.log().splitlines() if "] topic deleted " in line)
        assert "topic=orders" in of_broker
        assert "topic=orders" in of_name_server
