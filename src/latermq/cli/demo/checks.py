"""How a step of the demo fails."""


class DemoFailed(Exception):
    """A step did not have the expected result."""


def check(condition: bool, message: str) -> None:
    if not condition:
        raise DemoFailed(message)
