"""Messages that wait: admission, delay levels, the stage that holds what is due next, and delivery."""
