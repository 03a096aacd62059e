"""What every request passes before it is served: who may ask, from which pages, and how much."""
