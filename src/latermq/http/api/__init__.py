"""The resources of the HTTP API, one module per subject, each with its rows of the route table."""
