"""The pages of the console, in the order of the navigation. A page is one module here and one template."""

from latermq.http.console.page import Page
from latermq.http.console.pages import (
    brokers,
    dead_letters,
    future,
    groups,
    jobs,
    messages,
    overview,
    pipeline,
    timers,
    topics,
)

PAGES: tuple[Page, ...] = (
    overview.PAGE,
    timers.PAGE,
    future.PAGE,
    topics.PAGE,
    messages.PAGE,
    groups.PAGE,
    dead_letters.PAGE,
    jobs.PAGE,
    pipeline.PAGE,
    brokers.PAGE,
)
