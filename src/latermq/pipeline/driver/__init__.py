"""The driver: finds brokers, ingests their timer topics and keeps the jobs running."""
