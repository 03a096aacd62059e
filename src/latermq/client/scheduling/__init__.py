"""Scheduling of timers, each once: times as callers write them, rows, requests to brokers, and handles."""
