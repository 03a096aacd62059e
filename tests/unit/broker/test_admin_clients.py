"""Administration requests that a connected consumer answers."""

import asyncio
from collections.abc import Callable, Coroutine

import msgspec
import pytest

from latermq.errors import Busy, LaterMQError, QueryNotFound
from latermq.message.record import decode_record
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command, FrameReader, encode_frame
from latermq.protocol.remoting.json_body import raw_fields
from tests.support.admins import FakeConnection, Scene

RUNNING = Request.GET_CONSUMER_RUNNING_INFO
C1 = {"consumerGroup": "readers", "clientId": "c1"}


def running(scenario: Callable[[Scene], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        scene = Scene()
        scene.make_topic("orders")
        await scenario(scene)

    asyncio.run(run())


def reply(code: int = 0, body: bytes = b"", remark: str | None = None) -> Command:
    [command] = FrameReader().feed(encode_frame(code, 1, flag=1, fields={}, remark=remark, body=body))
    return command


async def answered(operator: FakeConnection) -> Command:
    await asyncio.sleep(0)
    [answer] = operator.sent
    return answer


def test_a_clients_own_state_is_passed_on_when_it_comes() -> None:
    async def scenario(scene: Scene) -> None:
        client = scene.connect("c1", consumer="readers")
        operator = scene.begin(RUNNING, C1 | {"jstackEnable": "true"})
        [(code, fields, _, future)] = client.calls
        assert (code, fields) == (RUNNING, C1 | {"jstackEnable": "true"})
        assert operator.sent == []
        future.set_result(reply(body=b'{"properties":{}}'))
        answer = await answered(operator)
        assert (answer.code, answer.opaque, answer.body) == (Response.SUCCESS, 7, b'{"properties":{}}')

    running(scenario)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (TimeoutError("too late"), Response.CONSUME_MSG_TIMEOUT),
        (ConnectionResetError("gone"), Response.CONSUMER_NOT_ONLINE),
    ],
)
def test_a_client_that_does_not_answer_is_told_of(failure: Exception, code: int) -> None:
    async def scenario(scene: Scene) -> None:
        client = scene.connect("c1", consumer="readers")
        operator = scene.begin(RUNNING, C1)
        client.calls[0][3].set_exception(failure)
        answer = await answered(operator)
        assert answer.code == code
        assert "'c1'" in (answer.remark or "")

    running(scenario)


def test_an_error_of_the_client_is_passed_on_as_it_is() -> None:
    async def scenario(scene: Scene) -> None:
        client = scene.connect("c1", consumer="readers")
        operator = scene.begin(RUNNING, C1)
        client.calls[0][3].set_result(reply(1, remark="no such group"))
        answer = await answered(operator)
        assert (answer.code, answer.remark) == (1, "no such group")

    running(scenario)


def test_a_client_that_is_not_there_cannot_be_asked() -> None:
    scene = Scene()
    scene.connect("c1", consumer="readers")
    for wrong in (C1 | {"clientId": "c2"}, C1 | {"consumerGroup": "nobody"}):
        with pytest.raises(LaterMQError, match="is not online") as refused:
            scene.begin(RUNNING, wrong)
        assert refused.value.code == Response.SYSTEM_ERROR


def test_one_message_is_given_to_one_client() -> None:
    async def scenario(scene: Scene) -> None:
        client = scene.connect("c1", consumer="readers")
        message_id = scene.send("orders", b"once more")
        operator = scene.begin(Request.CONSUME_MESSAGE_DIRECTLY, C1 | {"msgId": message_id})
        [(code, fields, body, future)] = client.calls
        assert code == Request.CONSUME_MESSAGE_DIRECTLY
        assert (fields["brokerName"], fields["msgId"]) == ("broker-a", message_id)
        assert decode_record(body).body == b"once more"
        future.set_result(reply(body=b'{"consumeResult":"CR_SUCCESS"}'))
        assert (await answered(operator)).body == b'{"consumeResult":"CR_SUCCESS"}'
        beyond = message_id[:-16] + f"{1 << 40:016X}"
        for wrong in (beyond, "no id"):
            with pytest.raises(QueryNotFound):
                scene.begin(Request.CONSUME_MESSAGE_DIRECTLY, C1 | {"msgId": wrong})

    running(scenario)


def test_the_offsets_that_clients_hold_are_put_together() -> None:
    offsets = b'{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:5}'

    async def scenario(scene: Scene) -> None:
        clients = [scene.connect(f"c{number}", consumer="readers") for number in (1, 2, 3)]
        fields = {"group": "readers", "topic": "orders"}
        operator = scene.begin(Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields)
        futures = [client.calls[0][3] for client in clients]
        futures[0].set_result(reply(body=b'{"consumerTable":{},"messageQueueTable":' + offsets + b"}"))
        futures[1].set_exception(TimeoutError())
        await asyncio.sleep(0)
        assert operator.sent == []
        futures[2].set_result(reply(body=b"no body at all"))
        answer = await answered(operator)
        assert raw_fields(raw_fields(answer.body)["consumerTable"]) == {"c1": offsets}

    running(scenario)


def test_the_offsets_of_one_client_are_asked_of_it_alone() -> None:
    async def scenario(scene: Scene) -> None:
        first, other = (scene.connect(name, consumer="readers") for name in ("c1", "c2"))
        fields = {"group": "readers", "topic": "orders", "clientAddr": "c1"}
        scene.begin(Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields)
        assert (len(first.calls), len(other.calls)) == (1, 0)
        first.calls[0][3].cancel()
        with pytest.raises(LaterMQError, match="is online"):
            scene.begin(Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields | {"clientAddr": "c3"})

    running(scenario)


def test_a_client_that_is_behind_with_reading_is_not_asked() -> None:
    async def scenario(scene: Scene) -> None:
        client = scene.connect("c1", consumer="readers")
        client.is_paused = True
        answer = await answered(scene.begin(RUNNING, C1))
        assert answer.code == Response.SYSTEM_BUSY
        assert client.calls == []

    running(scenario)


def test_an_operator_that_does_not_read_gets_no_long_answers() -> None:
    async def scenario(scene: Scene) -> None:
        client = scene.connect("c1", consumer="readers")
        operators = [scene.begin(RUNNING, C1) for _ in range(2)]
        operators[0].is_paused = True
        for _, _, _, future in client.calls:
            future.set_result(reply(body=bytes(100_000)))
        dropped, whole = [await answered(operator) for operator in operators]
        assert (dropped.code, dropped.body) == (Response.SYSTEM_BUSY, b"")
        assert "100" in (dropped.remark or "")
        assert (whole.code, len(whole.body)) == (Response.SUCCESS, 100_000)

    running(scenario)


def test_answers_of_all_members_that_do_not_fit_a_frame_are_an_error() -> None:
    async def scenario(scene: Scene) -> None:
        clients = [scene.connect(f"c{number}", consumer="readers") for number in range(5)]
        fields = {"group": "readers", "topic": "orders"}
        operator = scene.begin(Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields)
        table = b'{"messageQueueTable":{"x":"' + b"y" * (4 << 20) + b'"}}'
        for client in clients:
            client.calls[0][3].set_result(reply(body=table))
        answer = await answered(operator)
        assert answer.code == Response.SYSTEM_ERROR
        assert "frame" in (answer.remark or "")

    running(scenario)


def test_no_more_is_asked_than_clients_may_leave_unanswered() -> None:
    async def scenario(_: Scene) -> None:
        scene = Scene(max_client_calls=4)
        clients = [scene.connect(f"c{number}", consumer="readers") for number in range(3)]
        fields = {"group": "readers", "topic": "orders"}
        scene.begin(Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields)
        with pytest.raises(Busy, match="max_client_calls"):
            scene.begin(Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields)
        assert [len(client.calls) for client in clients] == [1, 1, 1]
        for client in clients:
            client.calls[0][3].set_exception(TimeoutError())
        await asyncio.sleep(0)
        scene.begin(Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields)
        assert [len(client.calls) for client in clients] == [2, 2, 2]
        for client in clients:
            client.calls[1][3].cancel()

    running(scenario)


def test_fields_are_cut_out_of_a_body_as_they_were_written() -> None:
    body = b'{ "a":{{"x":"}"}:1,2:3}, "b" : [1,{"c":","}] ,"d":null}'
    assert raw_fields(body) == {"a": b'{{"x":"}"}:1,2:3}', "b": b'[1,{"c":","}]', "d": b"null"}
    assert raw_fields(msgspec.json.encode({})) == {}
    for broken in (b"", b"[1]", b'{"a"}', b'{"a":{', b'{"a":]]}', b'{"a":"', b'{"a":"\\"', b"\xff"):
        with pytest.raises(LaterMQError):
            raw_fields(broken)


@pytest.mark.parametrize("piece", [b"{", b"[", b",", b":", b'"a":1,', b'"', b"\\", b"]"])
def test_a_body_of_marks_alone_is_refused_before_they_are_looked_at(piece: bytes) -> None:
    with pytest.raises(LaterMQError):
        raw_fields(b'{"a":{' + piece * (8 << 20))


def test_a_member_whose_answer_is_no_text_does_not_keep_an_operator_waiting() -> None:
    async def scenario(scene: Scene) -> None:
        client = scene.connect("c1", consumer="readers")
        operator = scene.begin(Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"group": "readers", "topic": "orders"})
        client.calls[0][3].set_result(reply(body=b"\xff"))
        assert raw_fields((await answered(operator)).body)["consumerTable"] == b"{}"

    running(scenario)
