"""How far the limit of open files is raised."""

import resource

import pytest

from latermq.server.remoting.open_files import raise_file_limit

MILLION = 1 << 20


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1_024, 65_536, 65_536),
        (1_024, 1_073_741_816, MILLION),
        (1_024, resource.RLIM_INFINITY, MILLION),
        (65_536, 65_536, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_it_is_raised_as_far_as_it_may_and_is_of_use(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int | None
) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, wanted: limits.append(wanted))
    allowed = raise_file_limit()
    assert limits == ([] if raised is None else [(raised, hard)])
    assert allowed == (raised or min(soft if soft >= 0 else MILLION, MILLION))


def test_where_the_kernel_refuses_the_limit_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(which: int, wanted: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (1_024, 65_536))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_file_limit() == 1_024
