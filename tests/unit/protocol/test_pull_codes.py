"""Each outcome of a pull has its response code."""

from latermq.model.pull_status import PullStatus
from latermq.protocol.remoting.codes import Response
from latermq.protocol.remoting.pull import PULL_CODES


def test_each_outcome_of_a_pull_has_the_response_code_that_clients_of_rocketmq_know() -> None:
    assert {status.name: PULL_CODES[status] for status in PullStatus} == {
        "FOUND": Response.SUCCESS,
        "NO_NEW_MESSAGE": Response.PULL_NOT_FOUND,
        "NO_MATCHED_MESSAGE": Response.PULL_RETRY_IMMEDIATELY,
        "OFFSET_MOVED": Response.PULL_OFFSET_MOVED,
    }
