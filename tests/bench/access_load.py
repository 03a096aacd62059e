"""What users and TLS cost: sends, pulls, pops and connections, on brokers with and without users, with and without TLS.

Where there are users, clients sign as one that may use just these topics and groups. Every broker accepts TLS.
"""

from collections.abc import Callable, Iterator, Sequence

from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.json_body import encode_body
from tests.bench.contenders import APACHE_USERS, LATERMQ_USERS, Contender
from tests.bench.load import Figures, Load, SendShape
from tests.bench.scenarios import Row, in_turn, print_line, print_row
from tests.bench.sizes import Sizes
from tests.interop.target import ROOT, ROOT_SECRET
from tests.security.attacker import attacking
from tests.support.signed_requests import signed

TOPIC = "bench-access"
USER, SECRET = "bench", "bench-secret"
RIGHTS = [{"resource": f"{kind}:bench*", "actions": ["All"], "decision": "Allow"} for kind in ("Topic", "Group")]
SIGNED = "send-signed"  # clients of brokers without users sign too, which tells the client's share in the cost of users
KINDS = ("send", SIGNED, "send-sync", "pull", "pop", "connect")
ACCESS = tuple(f"access-{kind}{tls}" for kind in KINDS for tls in ("", "-tls"))
CONNECTING_THREADS = 8


class AccessSideBySide:
    """Each scenario with and without TLS. Rows are yielded as they are measured."""

    def __init__(self, contenders: Sequence[Contender], load: Load, sizes: Sizes) -> None:
        self._contenders = contenders
        self._load = load
        self._sizes = sizes
        self._ahead = SendShape("async", sizes.async_threads, sizes.in_flight, sizes.size)
        self._waiting = SendShape("sync", sizes.sync_threads, sizes.sync_threads, sizes.size)
        self._is_prepared = False
        kinds: dict[str, Callable[[Load, Contender, str], Figures]] = {
            "send": lambda load, to, _: load.send(to, TOPIC, sizes.messages, self._ahead),
            SIGNED: lambda load, to, _: load.send(to, TOPIC, sizes.messages, self._ahead),
            "send-sync": lambda load, to, _: load.send(to, TOPIC, sizes.third, self._waiting),
            "pull": lambda load, to, group: self._drain(load, to, group, pops=False),
            "pop": lambda load, to, group: self._drain(load, to, group, pops=True),
            "connect": lambda load, to, _: load.connect(to, TOPIC, sizes.third // 10 or 1, CONNECTING_THREADS),
        }
        self.scenarios: dict[str, Callable[[], Iterator[Row]]] = {
            f"access-{kind}{'-tls' * tls}": lambda kind=kind, tls=tls, measure=measure: self._rows(  # type: ignore[misc]
                f"access-{kind}{'-tls' * tls}", measure, tls=tls
            )
            for kind, measure in kinds.items()
            for tls in (False, True)
        }

    def _rows(self, name: str, measure: Callable[[Load, Contender, str], Figures], *, tls: bool) -> Iterator[Row]:
        self._prepare()
        for repeat, contender in in_turn(self._contenders, self._sizes.repeats):
            figures = measure(
                self._as_user(contender, tls=tls, signs=SIGNED in name),
                contender,
                f"{name}-{repeat}".replace("access", "bench"),
            )
            yield print_row(Row(name, contender.name, repeat, figures))

    def _as_user(self, contender: Contender, *, tls: bool, signs: bool = False) -> Load:
        credentials = {"user": USER, "secret": SECRET} if signs or has_users(contender) else {}
        return self._load.with_access(tls=tls, **credentials)

    def _drain(self, load: Load, contender: Contender, group: str, *, pops: bool) -> Figures:
        if pops:
            mode = {"topic": TOPIC, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}
            as_root(contender, Request.SET_MESSAGE_REQUEST_MODE, {}, mode)
        return load.consume(contender, TOPIC, group, self._sizes.third, self._sizes.consume_threads, pops=pops)

    def _prepare(self) -> None:
        """Create the user, and warm up with sends, which are drained later."""
        if self._is_prepared:
            return
        self._is_prepared = True
        for contender in self._contenders:
            print_line(f"warming up {contender.name}")
            if has_users(contender):
                as_root(contender, Request.AUTH_CREATE_USER, {"username": USER}, {"password": SECRET})
                acl = {"subject": f"User:{USER}", "policies": [{"policyType": "Custom", "entries": RIGHTS}]}
                as_root(contender, Request.AUTH_CREATE_ACL, {"subject": f"User:{USER}"}, acl)
            for tls in (False, True):
                load = self._as_user(contender, tls=tls)
                load.make_topic(contender, TOPIC, self._sizes.size)
                load.fill(contender, TOPIC, max(1, self._sizes.warm // 10), self._waiting)
                load.fill(contender, TOPIC, max(self._sizes.warm, self._sizes.third), self._ahead)


def has_users(contender: Contender) -> bool:
    return contender.name in (LATERMQ_USERS, APACHE_USERS)


def as_root(contender: Contender, code: Request, fields: dict[str, str], body: object) -> None:
    """Send a request to the broker as its super user, unsigned if it has no users."""
    data = encode_body(body)
    if has_users(contender):
        fields = signed(ROOT, fields, data, ROOT_SECRET)
    with attacking(int(contender.broker_address.rpartition(":")[2])) as client:
        reply = client.call(code, fields, data)
    assert reply.code == Response.SUCCESS, reply.remark
