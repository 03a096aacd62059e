"""Consumers as decorated functions: retries, dead letters, and a clean end on Ctrl-C or SIGTERM.

A coroutine function runs on the event loop, a plain function in a thread.
"""

import json
import os

from latermq import App, Message, Reject

app = App(os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876"))


@app.consumer("signups", group="mailer", retries=5)
async def welcome(message: Message) -> None:
    try:
        address = json.loads(message.body)["address"]
    except (ValueError, KeyError) as error:
        # No retry can help: it goes to the dead letters at once. Any other exception is retried.
        raise Reject(f"not a sign-up: {error!r}") from error
    print("welcome", address, flush=True)


@app.consumer("invoices", group="archive", expression="paid || refunded", concurrency=4)
def archive(message: Message) -> None:
    print("archived", message.body.decode(), flush=True)


if __name__ == "__main__":
    app.run()
