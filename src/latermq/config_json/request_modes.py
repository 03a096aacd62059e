"""RocketMQ's JSON format of request modes: messageRequestMode.json and SET_MESSAGE_REQUEST_MODE."""

from msgspec import Struct, field

from latermq.config_json.numbers import Int32
from latermq.model.request_mode import Mode


class RequestModeJson(
    Struct, kw_only=True, frozen=True, rename={"group": "consumerGroup", "shared_with": "popShareQueueNum"}
):
    """SetMessageRequestModeRequestBody."""

    topic: str
    group: str
    mode: Mode = "PULL"
    shared_with: Int32 = 0


class RequestModeTableJson(Struct, kw_only=True, rename={"modes": "messageRequestModeMap"}):
    """messageRequestMode.json: topic → group → mode. The file has no version."""

    modes: dict[str, dict[str, RequestModeJson]] = field(default_factory=dict)
