"""The pages of the console, in the order of the navigation. A page is one module here and one template."""

from latermq.http.console.page import Page
from latermq.http.console.pages import brokers, overview, pipeline, timers

PAGES: tuple[Page, ...] = (
    overview.PAGE,
    timers.PAGE,
    pipeline.PAGE,
    brokers.PAGE,
)
