"""Messages and timers as commands show them."""
