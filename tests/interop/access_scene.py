"""Users, policies and one request of each kind, to compare how LaterMQ and Apache RocketMQ answer them."""

import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from latermq.protocol.remoting.codes import Request, Response
from tests.integration.brokers import send_fields
from tests.interop.programs import Json, Program
from tests.interop.target import ROOT, ROOT_SECRET, Cluster
from tests.interop.waiting import wait_until

TOPIC, GROUP, RETRY, NOW_MS = "orders", "readers", "%RETRY%readers", 1_700_000_000_000
_numbers = itertools.count()
Entry = dict[str, Any]
Policies = Mapping[str, Sequence[Entry]]


def entry(resources: str, actions: str = "All", decision: str = "Allow", sources: str = "") -> list[Entry]:
    """An entry for each of the resources."""
    rest = {"actions": actions.split(), "sourceIps": sources.split(), "decision": decision}
    return [{"resource": resource, **rest} for resource in resources.split()]


def custom(*entries: list[Entry]) -> Policies:
    return {"Custom": [one for some in entries for one in some]}


@dataclass(frozen=True)
class Client:
    """Who sends requests."""

    user: str | None
    secret: str
    policies: Policies = field(default_factory=dict)
    is_enabled: bool = True
    exists: bool = True

    @property
    def fails(self) -> bool:
        """Its requests fail before their permission is looked at."""
        return not (self.exists and self.is_enabled)


def _user(name: str, *entries: list[Entry]) -> Client:
    return Client(name, f"{name}-secret", custom(*entries) if entries else {})


_BOTH = "Topic:* Group:*"
CLIENTS = {
    "no user": Client(None, "", exists=False),
    "unknown user": Client("ghost", "boo", exists=False),
    "wrong secret": Client("publisher", "guessed", exists=False),
    "disabled user": Client("off", "off-secret", custom(entry("*")), is_enabled=False),
    "no policy": _user("nobody"),
    "publisher": _user("publisher", entry("Topic:orders", "Pub")),
    "consumer": _user("consumer", entry("Topic:orders Group:readers", "Sub")),
    "consumer without the group": _user("topic_only", entry("Topic:orders", "Sub")),
    "consumer without the topic": _user("group_only", entry("Group:readers", "Sub")),
    "another topic and group": _user("other", entry("Topic:bills Group:others")),
    "Deny of the topic over Allow of all": _user("denied", entry(_BOTH), entry("Topic:orders", "All", "Deny")),
    "Deny of some actions": _user("half", entry(_BOTH), entry(_BOTH.replace("*", "o*"), "Pub Sub", "Deny")),
    "Deny and Allow of the same resource": _user(
        "both", entry("Topic:orders Group:readers", "Pub Sub"), entry("Topic:orders", "Pub", "Deny")
    ),
    "prefixes": _user("prefix", entry("topic:ord* GROUP:read*")),
    "a longer prefix with Deny": _user("longer", entry("Topic:ord* Group:*"), entry("Topic:order*", "All", "Deny")),
    "a name in a prefix with Deny": _user("named", entry("Topic:ord*", "All", "Deny"), entry("Topic:orders Group:*")),
    "another address": _user("elsewhere", entry(_BOTH, sources="10.0.0.0/8 2001:db8::/32")),
    "this address": _user("here", entry(_BOTH, sources="10.1.2.3 127.0.0.0/8")),
    "Deny of this address": _user("away", entry("*"), entry(_BOTH, "All", "Deny", "127.0.0.1")),
    "default policy": Client(
        "fallback", "fallback-secret", {"Default": entry(_BOTH), "Custom": entry("Group:readers", "Get", "Deny")}
    ),
    "operator": _user("operator", entry("Cluster:*")),
    "every resource": _user("everything", entry("*")),
    "super user": Client(ROOT, ROOT_SECRET),
}


@dataclass(frozen=True)
class Case:
    """One request. Destructive ones come after all others of all clients."""

    name: str
    code: Request
    fields: Mapping[str, object] = field(default_factory=dict)
    body: object = None
    destroys: bool = False

    def as_json(self) -> Json:
        body = self.body if isinstance(self.body, str | None) else json.dumps(self.body)
        return {"code": self.code, "fields": {name: str(value) for name, value in self.fields.items()}, "body": body}


@dataclass(frozen=True)
class Stored:
    """A message and a half message, which requests can name."""

    message: int
    message_id: str
    half: int
    half_queue_offset: str


def create_users(program: Program, cluster: Cluster) -> None:
    """Create all users and their policies."""
    requests: list[Json] = []
    for client in CLIENTS.values():
        if not client.exists or client.user == ROOT:
            continue
        status = "enable" if client.is_enabled else "disable"
        user = {"password": client.secret, "userType": "Normal", "userStatus": status}
        requests.append(Case("", Request.AUTH_CREATE_USER, {"username": client.user}, user).as_json())
        if client.policies:
            policies = [{"policyType": kind, "entries": entries} for kind, entries in client.policies.items()]
            acl = {"subject": f"User:{client.user}", "policies": policies}
            requests.append(Case("", Request.AUTH_CREATE_ACL, {"subject": f"User:{client.user}"}, acl).as_json())
    answers = ask(program, cluster, CLIENTS["super user"], requests)
    assert [one["code"] for one in answers] == [Response.SUCCESS] * len(requests), answers


def await_copies(program: Program, cluster: Cluster) -> None:
    """Wait until the name server knows all users and policies that the broker knows now."""
    if cluster.server is None:
        return  # Apache's name server knows no users
    name = f"marker{next(_numbers)}"
    body = {"password": "marker-secret"}
    ask(
        program,
        cluster,
        CLIENTS["super user"],
        [Case("", Request.AUTH_CREATE_USER, {"username": name}, body).as_json()],
    )
    route = Case("", Request.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}).as_json()

    def is_known() -> bool:
        time.sleep(0.1)  # each look that comes too early is a failed attempt
        reply = program.call(
            "request", address=cluster.namesrv, requests=[route], reconnect=True, user=name, secret="marker-secret"
        )
        return "has no permission" in (reply["answers"][0]["remark"] or "")

    wait_until(is_known, 30, "the name server has copied the users")


def store_messages(program: Program, cluster: Cluster) -> Stored:
    """Send a message and a half message as the super user."""
    half = {"TRAN_MSG": "true", "PGROUP": "producers", "UNIQ_KEY": "7F000001000000000000000000000001"}
    properties = "".join(f"{name}\1{value}\2" for name, value in half.items())
    requests = [
        Case("", Request.SEND_MESSAGE_V2, send_fields(TOPIC, i=text), "body").as_json() for text in ("", properties)
    ]
    requests[1]["fields"]["f"] = str(1 << 2)  # a half message, to Apache's broker
    plain, stored = ask(program, cluster, CLIENTS["super user"], requests)
    assert plain["code"] == stored["code"] == Response.SUCCESS, (plain, stored)
    message_id = plain["fields"]["msgId"]
    half_id = stored["fields"]["msgId"]
    return Stored(int(message_id[-16:], 16), message_id, int(half_id[-16:], 16), stored["fields"]["queueOffset"])


def ask(program: Program, cluster: Cluster, client: Client, requests: Sequence[Json]) -> list[Json]:
    """Send requests as a client. After a failed authentication servers may be slow on that connection."""
    credentials = {} if client.user is None else {"user": client.user, "secret": client.secret}
    reply = program.call(
        "request", address=cluster.address, requests=list(requests), reconnect=client.fails, **credentials
    )
    answers: list[Json] = reply["answers"]
    return answers


def cases(stored: Stored, broker: str) -> list[Case]:
    """A request of each kind that both servers know."""
    return [*_messages(stored, broker), *_pops(broker), *_administration(), *_users()]


def _messages(stored: Stored, broker: str) -> Iterator[Case]:
    code, queue = Request, {"topic": TOPIC, "queueId": 0}
    member = {"consumerGroup": GROUP, **queue}
    retry = {"consumerGroup": GROUP, "topic": RETRY, "queueId": 0}
    pull = {
        "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
        "subscription": "*", "subVersion": 0, "expressionType": "TAG",
    }  # fmt: skip
    old_send = {
        "producerGroup": "producers", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
        "queueId": 0, "sysFlag": 0, "bornTimestamp": NOW_MS, "flag": 0, "properties": "", "reconsumeTimes": 0,
        "unitMode": "false", "batch": "false",
    }  # fmt: skip
    wanted = {"topic": TOPIC, "subString": "*", "expressionType": "TAG", "tagsSet": [], "codeSet": []}
    consumer = {
        "groupName": GROUP, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [wanted], "unitMode": False,
    }  # fmt: skip
    producer = {"groupName": "producers"}
    locks = {"consumerGroup": GROUP, "clientId": "c", "mqSet": [{"topic": TOPIC, "brokerName": broker, "queueId": 0}]}
    half = {
        "producerGroup": "producers", "topic": TOPIC, "tranStateTableOffset": stored.half_queue_offset,
        "commitLogOffset": stored.half, "commitOrRollback": 12, "fromTransactionCheck": "false",
    }  # fmt: skip
    back = {
        "offset": stored.message, "group": GROUP, "delayLevel": 0, "originMsgId": stored.message_id,
        "originTopic": TOPIC, "unitMode": "false", "maxReconsumeTimes": 16,
    }  # fmt: skip
    yield Case("10", code.SEND_MESSAGE, old_send, "body")
    yield Case("310", code.SEND_MESSAGE_V2, send_fields(TOPIC), "body")
    yield Case("310 to a retry topic", code.SEND_MESSAGE_V2, send_fields(RETRY, a=GROUP), "body")
    yield Case("320", code.SEND_BATCH_MESSAGE, send_fields(TOPIC, m="true"), "body")
    yield Case("11", code.PULL_MESSAGE, {**member, **pull})
    yield Case("11 from a retry topic", code.PULL_MESSAGE, {**retry, **pull})
    yield Case("361", code.LITE_PULL_MESSAGE, {**member, **pull})
    yield Case("14", code.QUERY_CONSUMER_OFFSET, member)
    yield Case("14 of a retry topic", code.QUERY_CONSUMER_OFFSET, retry)
    yield Case("15", code.UPDATE_CONSUMER_OFFSET, {**member, "commitOffset": 0})
    yield Case("34", code.HEART_BEAT, {}, {"clientID": "c", "consumerDataSet": [consumer]})
    yield Case("34 of a producer", code.HEART_BEAT, {}, {"clientID": "p", "producerDataSet": [producer]})
    yield Case("35", code.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": GROUP})
    yield Case("35 of a producer", code.UNREGISTER_CLIENT, {"clientID": "p", "producerGroup": "producers"})
    yield Case("36", code.CONSUMER_SEND_MSG_BACK, back)
    yield Case("37", code.END_TRANSACTION, half)
    yield Case("38", code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP})
    yield Case("41", code.LOCK_BATCH_MQ, {}, locks)
    yield Case("42", code.UNLOCK_BATCH_MQ, {}, locks)
    yield Case("46", code.CHECK_CLIENT_CONFIG, {}, {"clientId": "c", "group": GROUP, "subscriptionData": wanted})
    recall = {"producerGroup": "producers", "topic": TOPIC, "recallHandle": "eA==", "brokerName": broker}
    yield Case("370", code.RECALL_MESSAGE, recall)
    assignment = {
        "topic": TOPIC, "consumerGroup": GROUP, "clientId": "c", "strategyName": "AVG", "messageModel": "CLUSTERING",
    }  # fmt: skip
    yield Case("400", code.QUERY_ASSIGNMENT, {}, assignment)
    span = {"maxNum": 1, "beginTimestamp": 0, "endTimestamp": NOW_MS}
    yield Case("12", code.QUERY_MESSAGE, {"topic": TOPIC, "key": "k", **span})
    yield Case("29", code.SEARCH_OFFSET_BY_TIMESTAMP, {**queue, "timestamp": NOW_MS})
    yield Case("30", code.GET_MAX_OFFSET, queue)
    yield Case("31", code.GET_MIN_OFFSET, queue)
    yield Case("32", code.GET_EARLIEST_MSG_STORETIME, queue)
    yield Case("33", code.VIEW_MESSAGE_BY_ID, {"topic": TOPIC, "offset": stored.message})


def _pops(broker: str) -> Iterator[Case]:
    code = Request
    queue = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0}
    waits = {"pollTime": 0, "bornTime": NOW_MS}
    pop = {"maxMsgNums": 1, "invisibleTime": 10_000, "initMode": 0, "expType": "TAG", "exp": "*", "order": "false"}
    popped = {"extraInfo": f"0 {NOW_MS} 10000 0 0 {broker} 0 0", "offset": 0}
    ack = {"c": GROUP, "t": TOPIC, "r": "0", "so": 0, "q": 0, "rq": 0, "pt": NOW_MS, "it": 10_000, "b": "AQ=="}
    yield Case("200050", code.POP_MESSAGE, {**queue, **pop, **waits})
    yield Case("200051", code.ACK_MESSAGE, {**queue, **popped})
    yield Case("200053", code.CHANGE_MESSAGE_INVISIBLETIME, {**queue, **popped, "invisibleTime": 10_000})
    yield Case("200054", code.NOTIFICATION, {**queue, **waits})
    yield Case("200055", code.POLLING_INFO, queue)
    yield Case("200151", code.BATCH_ACK_MESSAGE, {}, {"brokerName": broker, "acks": [ack]})


def _administration() -> Iterator[Case]:
    code = Request
    both = {"consumerGroup": GROUP, "topic": TOPIC}
    config = {
        "topicName": TOPIC, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0, "order": False,
    }  # fmt: skip
    header = {name: str(value).lower() if value is False else value for name, value in config.items()}
    del header["topicName"]
    group = {"groupName": GROUP, "retryMaxTimes": 16}
    mode = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "PULL", "popShareQueueNum": 0}
    yield Case("17", code.UPDATE_AND_CREATE_TOPIC, {"topic": TOPIC, "defaultTopic": "TBW102", **header})
    yield Case("18", code.UPDATE_AND_CREATE_TOPIC_LIST, {}, {"topicConfigList": [config]})
    yield Case("21", code.GET_ALL_TOPIC_CONFIG)
    yield Case("25", code.UPDATE_BROKER_CONFIG, {}, "traceOn=true\n")
    yield Case("26", code.GET_BROKER_CONFIG)
    yield Case("28", code.GET_BROKER_RUNTIME_INFO)
    yield Case("43", code.GET_ALL_CONSUMER_OFFSET)
    yield Case("200", code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)
    yield Case("201", code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    yield Case("202", code.GET_TOPIC_STATS_INFO, {"topic": TOPIC})
    yield Case("203", code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": GROUP})
    yield Case("204", code.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "producers", "topic": TOPIC})
    yield Case("208", code.GET_CONSUME_STATS, both)
    reset = {"topic": TOPIC, "group": GROUP, "timestamp": 0, "isForce": "true"}
    yield Case("222", code.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    yield Case("223", code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": TOPIC, "group": GROUP, "clientAddr": ""})
    yield Case("225", code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, {"groupConfigList": [group]})
    yield Case("300", code.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": TOPIC})
    yield Case("303", code.QUERY_CONSUME_TIME_SPAN, {"topic": TOPIC, "group": GROUP})
    yield Case("305", code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    yield Case("306", code.CLEAN_EXPIRED_CONSUMEQUEUE)
    yield Case("307", code.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": GROUP, "clientId": "absent"})
    yield Case("308", code.QUERY_CORRECTION_OFFSET, {"compareGroup": GROUP, "topic": TOPIC})
    clone = {"srcGroup": "others", "destGroup": GROUP, "topic": TOPIC, "offline": "true"}
    yield Case("314", code.CLONE_GROUP_OFFSET, clone)
    yield Case("315", code.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC})
    yield Case("316", code.CLEAN_UNUSED_TOPIC)
    yield Case("317", code.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    yield Case("321", code.QUERY_CONSUME_QUEUE, {**both, "queueId": 0, "index": 0, "count": 1})
    yield Case("328", code.GET_ALL_PRODUCER_INFO)
    yield Case("329", code.DELETE_EXPIRED_COMMITLOG)
    yield Case("343", code.QUERY_TOPICS_BY_CONSUMER, {"group": GROUP})
    yield Case("345", code.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": GROUP, "topic": TOPIC})
    yield Case("351", code.GET_TOPIC_CONFIG, {"topic": TOPIC})
    yield Case("352", code.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": GROUP})
    yield Case("401", code.SET_MESSAGE_REQUEST_MODE, {}, mode)
    yield Case("907", code.GET_BROKER_HA_STATUS)
    yield Case("207", code.DELETE_SUBSCRIPTIONGROUP, {"groupName": GROUP}, destroys=True)
    yield Case("215", code.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC}, destroys=True)


def _users() -> Iterator[Case]:
    """Requests about a user of their own, each of them also with what is refused for what it says."""
    code = Request
    name, subject = {"username": "temporary"}, {"subject": "User:temporary"}
    new = {"password": "x", "userType": "Normal"}

    def acl(**changes: object) -> Json:
        one = {"resource": "Topic:x", "actions": ["Pub"], "sourceIps": [], "decision": "Allow", **changes}
        return {"subject": "User:temporary", "policies": [{"policyType": "Custom", "entries": [one]}]}

    yield Case("3004 of nobody", code.AUTH_GET_USER, name)
    yield Case("3005", code.AUTH_LIST_USER, {"filter": "no-such-user"})
    yield Case("3009 of nobody", code.AUTH_GET_ACL, {"subject": "User:ghost"})
    yield Case("3010", code.AUTH_LIST_ACL, {"subjectFilter": "no-such-user", "resourceFilter": ""})
    yield Case("3001", code.AUTH_CREATE_USER, name, new, destroys=True)
    yield Case("3001 again", code.AUTH_CREATE_USER, name, new, destroys=True)
    for nobody, label in (("", "an empty"), (" ", "a blank")):
        yield Case(f"3001 of {label} name", code.AUTH_CREATE_USER, {"username": nobody}, new, destroys=True)
        yield Case(f"3002 of {label} name", code.AUTH_UPDATE_USER, {"username": nobody}, new, destroys=True)
        yield Case(f"3003 of {label} name", code.AUTH_DELETE_USER, {"username": nobody}, destroys=True)
    yield Case("3001 without a password", code.AUTH_CREATE_USER, {"username": "b"}, {"password": ""}, destroys=True)
    created = {"password": "x", "userType": "Super"}
    yield Case("3001 of a super user", code.AUTH_CREATE_USER, {"username": "tops"}, created, destroys=True)
    yield Case("3002", code.AUTH_UPDATE_USER, name, {"userStatus": "disable"}, destroys=True)
    yield Case("3002 to a super user", code.AUTH_UPDATE_USER, name, {"userType": "Super"}, destroys=True)
    yield Case("3002 of nobody", code.AUTH_UPDATE_USER, {"username": "ghost"}, {"password": "x"}, destroys=True)
    yield Case("3006", code.AUTH_CREATE_ACL, subject, acl(), destroys=True)
    ghost = {"subject": "User:ghost"}
    yield Case("3006 for nobody", code.AUTH_CREATE_ACL, ghost, {**acl(), **ghost}, destroys=True)
    nothing = {**subject, "policies": [{"policyType": "Custom", "entries": []}]}
    yield Case("3006 without entries", code.AUTH_CREATE_ACL, subject, nothing, destroys=True)
    for label, change in (
        ("no resource", {"resource": ""}),
        ("no actions", {"actions": []}),
        ("the action Any", {"actions": ["Any"]}),
        ("a wrong address", {"sourceIps": ["10.0.0.300"]}),
        ("no decision", {"decision": "perhaps"}),
    ):
        yield Case(f"3006 with {label}", code.AUTH_CREATE_ACL, subject, acl(**change), destroys=True)
    yield Case("3007", code.AUTH_UPDATE_ACL, subject, acl(decision="Deny"), destroys=True)
    yield Case("3008", code.AUTH_DELETE_ACL, {**subject, "resource": "Topic:x"}, destroys=True)
    yield Case("3008 of nobody", code.AUTH_DELETE_ACL, {"subject": "User:ghost"}, destroys=True)
    yield Case("3003", code.AUTH_DELETE_USER, name, destroys=True)
    yield Case("3003 of nobody", code.AUTH_DELETE_USER, {"username": "ghost"}, destroys=True)
    yield Case("3003 of a super user", code.AUTH_DELETE_USER, {"username": "tops"}, destroys=True)


_ABOUT_USERS = range(Request.AUTH_CREATE_USER, Request.AUTH_LIST_ACL + 1)


def answers_of(program: Program, cluster: Cluster) -> dict[str, dict[str, str]]:
    """Every request of every client, and its answer: by case, then by client."""
    create_users(program, cluster)
    everything = cases(store_messages(program, cluster), cluster.broker)
    answers: dict[str, dict[str, str]] = {case.name: {} for case in everything}
    for destroys in (False, True):
        some = [case for case in everything if case.destroys == destroys]
        for name, client in CLIENTS.items():
            replies = ask(program, cluster, client, [case.as_json() for case in some])
            for case, reply in zip(some, replies, strict=True):
                answers[case.name][name] = _described(case, reply)
    return answers


def _described(case: Case, reply: Json) -> str:
    """A refusal word for word. Other answers are compared elsewhere, except those to requests about users."""
    code = reply["code"]
    if code == Response.SUCCESS or (code != Response.NO_PERMISSION and case.code not in _ABOUT_USERS):
        return "served"
    return f"{code} {reply['remark']}"


def as_text(answers: Mapping[str, Mapping[str, str]]) -> str:
    """Answers as a file: by case and by answer, the clients that got it, with `USER` for their names."""
    cases_: dict[str, dict[str, list[str]]] = {}
    for case, by_client in answers.items():
        by_answer = cases_.setdefault(case, {})
        for client, answer in by_client.items():
            by_answer.setdefault(answer.replace(f"User:{CLIENTS[client].user} ", "User:USER "), []).append(client)
    return json.dumps(cases_, indent=1, ensure_ascii=False) + "\n"


def from_text(text: str) -> dict[str, dict[str, str]]:
    """The reverse of `as_text`."""
    return {
        case: {
            client: answer.replace("User:USER ", f"User:{CLIENTS[client].user} ")
            for answer, clients in by_answer.items()
            for client in clients
        }
        for case, by_answer in json.loads(text).items()
    }
