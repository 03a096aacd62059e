"""From the timer topic into the engine: what is put, renewed, cancelled or already delivered."""
