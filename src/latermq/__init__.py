"""LaterMQ: a message broker for messages that must arrive later."""
