"""The page Pipeline: how far Spark is with the far timers of each broker, and when it must be further."""

from latermq.http.console.page import Page, PageRow, View, Visit


async def show(visit: Visit) -> View:
    """The pipeline as each broker sees it."""
    reports = (await visit.api.get("/api/v1/pipeline")).brokers
    state = await visit.api.state()
    return View(
        "pipeline.html",
        {"reports": reports, "now_ms": state.density.now_ms, "has_driver": any(report.epoch for report in reports)},
    )


PAGE = Page("Pipeline", [PageRow("GET", "/pipeline", show)])
